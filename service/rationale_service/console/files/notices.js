// What the templates of notices name: fields of a form, and the variables that are made of them.

export const TEMPLATES = {
  "adverse-action": "Notice of action taken (Regulation B, FCRA)",
  "eu-consumer-credit": "Rejection (directive (EU) 2023/2225)",
};

const PARTIES = [
  ["creditor.name", "Creditor’s name"],
  ["creditor.address", "Creditor’s address"],
  ["applicant.name", "Applicant’s name"],
  ["applicant.address", "Applicant’s address"],
  ["application", "Application, such as personal loan"],
];

// `none` can be said instead: there is no such thing. `within` are the fields where there is.
export const FIELDS = {
  "adverse-action": [
    ...PARTIES,
    ["agency.name", "Supervising agency’s name"],
    ["agency.address", "Supervising agency’s address"],
    [
      "consumer_report",
      "Consumer report",
      {
        none: "none was used",
        some: "one was used",
        within: [
          ["agency.name", "Reporting agency’s name"],
          ["agency.address", "Reporting agency’s address"],
          ["agency.telephone", "Reporting agency’s telephone"],
          [
            "credit_score",
            "Credit score of the agency",
            {
              none: "none was used",
              some: "one was used",
              within: [
                ["value", "Credit score"],
                ["lowest", "Lowest possible"],
                ["highest", "Highest possible"],
                ["date", "Date of the score"],
                ["provider", "Provider"],
                ["factors", "Key factors, one a line", { lines: true }],
              ],
            },
          ],
        ],
      },
    ],
  ],
  "eu-consumer-credit": [
    ...PARTIES,
    ["creditor.contact", "Where to write to the creditor"],
    ["contest", "How to contest the decision"],
    [
      "database",
      "Database",
      {
        none: "none was consulted",
        some: "one was consulted",
        within: [
          ["name", "Database’s name"],
          ["contact", "Database’s address"],
          ["result", "Result of the consultation"],
          ["categories", "Categories of data"],
        ],
      },
    ],
    ["debt_advice", "Advice on debt", { none: "is not told of", some: "is available", within: [["", "From whom"]] }],
  ],
};

/** {"creditor.name": "A Bank"} → {creditor: {name: "A Bank"}}; values are texts, false or lists. */
export function nested(values) {
  const found = {};
  for (const [path, value] of Object.entries(values)) {
    const parts = path.split(".").filter(Boolean);
    let inner = found;
    for (const part of parts.slice(0, -1)) inner = inner[part] ??= {};
    inner[parts.at(-1)] = value;
  }
  return found;
}
