"""Makes everything in this folder: synthetic loan data, a small credit network, its references, applicants.

    python examples/credit/make_credit.py [FOLDER]

Needs scikit-learn (in the project's `test` extra). The seed is fixed; README.md beside this file documents
the data. F = 10 features throughout, in the order of FEATURES.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SEED = 20_240_501
APPLICATIONS = 20_000
TEST_SHARE = 0.25
HIDDEN = (32, 16)
EPOCHS = 30
CUT_OFF = 0.20  # an application is declined from this default probability on
REFERENCES = 100

# The order is the order of the network's inputs; the second entry says how many decimals the data carries.
FEATURES = {
    "income": -2,  # gross, EUR a year
    "loan_amount": -2,  # EUR
    "term_months": 0,
    "debt_to_income": 3,  # yearly debt service, this loan's instalments included, over income
    "credit_history_years": 1,
    "late_payments_2y": 0,  # payments more than 30 days late in the last two years
    "open_accounts": 0,
    "utilisation": 2,  # share of the credit lines in use
    "employment_years": 1,  # with the present employer
    "recent_inquiries": 0,  # credit inquiries in the last six months
}

# Written by hand rather than drawn: one clear approval, one clear refusal, and one close call on either side.
APPLICANTS = (
    (58_000, 12_000, 48, 0.180, 14.0, 0, 5, 0.22, 8.5, 0),
    (24_500, 15_000, 60, 0.520, 3.5, 3, 4, 0.91, 0.8, 4),
    (41_000, 18_000, 48, 0.330, 9.0, 2, 7, 0.48, 5.0, 1),
    (31_000, 9_000, 36, 0.390, 6.0, 0, 6, 0.71, 2.5, 2),
)


class Credit(NamedTuple):
    """What was made. `applications`: [20,000, F]; `near_threshold`: those that only just pass; `auc`: of the
    network, on rows it never saw; `best_auc`: of the true probabilities, which no model can beat but by luck.
    """

    model: onnx.ModelProto
    applications: NDArray[np.float64]
    references: NDArray[np.float64]
    near_threshold: NDArray[np.float64]
    default_rate: float
    auc: float
    best_auc: float


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    credit = make_credit()
    write(credit, folder)
    print(f"default rate  {credit.default_rate:.3f}")
    print(f"AUC           {credit.auc:.3f} (the true probabilities: {credit.best_auc:.3f})")
    print(f"references    {len(credit.references)} of the applications under {CUT_OFF:.0%}")
    print(f"written to    {folder}")


def make_credit() -> Credit:
    """Draws the applications, trains the network on three quarters of them, measures it on the rest."""
    from sklearn.metrics import roc_auc_score

    random = np.random.default_rng(SEED)
    x = draw_applications(random)
    probability = sigmoid(true_logit(x))
    defaulted = random.random(len(x)) < probability
    split = int(len(x) * (1 - TEST_SHARE))
    mean, scale, layers = train(x[:split], defaulted[:split])
    model = export(mean, scale, layers)
    predicted = predict(mean, scale, layers, x)
    passes = predicted[:split] < CUT_OFF
    approved = x[:split][passes]
    by_risk = approved[np.argsort(predicted[:split][passes], kind="stable")]
    return Credit(
        model,
        applications=x,
        references=approved[random.choice(len(approved), REFERENCES, replace=False)],
        near_threshold=by_risk[-REFERENCES:],
        default_rate=float(defaulted.mean()),
        auc=float(roc_auc_score(defaulted[split:], predicted[split:])),
        best_auc=float(roc_auc_score(defaulted[split:], probability[split:])),
    )


def draw_applications(random: np.random.Generator) -> NDArray[np.float64]:
    """[20,000, F] in raw units. One hidden trait, `steady`, ties the features together."""
    n = APPLICATIONS
    steady = random.normal(size=n)
    income = 36_000 * np.exp(0.25 * steady + 0.40 * random.normal(size=n))
    employment = random.gamma(1.6, 3.0, n) * np.exp(0.25 * steady)
    history = 1 + 0.5 * employment + random.gamma(2.0, 3.0, n)
    accounts = 1 + random.poisson(2 + 0.15 * np.minimum(history, 20))
    utilisation = sigmoid(-0.5 - 0.7 * steady + 1.0 * random.normal(size=n))
    late = random.poisson(0.25 * np.exp(-0.6 * steady + 1.2 * (utilisation - 0.4)))
    inquiries = random.poisson(0.8 * np.exp(-0.3 * steady))
    loan = np.clip(income * np.exp(-1.2 + 0.6 * random.normal(size=n)), 1_000, 80_000)
    term = random.choice([12, 24, 36, 48, 60, 72], n, p=[0.10, 0.18, 0.27, 0.20, 0.17, 0.08])
    debt = random.beta(2, 9, n) + 12 * loan / term / income
    columns = [
        np.clip(income, 12_000, 250_000),
        loan,
        term,
        np.clip(debt, 0, 1.2),
        np.clip(history, 0, 45),
        np.minimum(late, 12),
        np.minimum(accounts, 20),
        utilisation,
        np.clip(employment, 0, 40),
        np.minimum(inquiries, 10),
    ]
    rounded = [np.round(column, places) for column, places in zip(columns, FEATURES.values(), strict=True)]
    return np.stack(rounded, axis=1)


def true_logit(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log-odds of a default, [N] from [N, F]: kinks, saturation and one interaction to be learnt."""
    row = dict(zip(FEATURES, x.T, strict=True))
    late, used = np.log1p(row["late_payments_2y"]), row["utilisation"]
    logit: NDArray[np.float64] = (
        -3.3
        - 0.7 * np.log(row["income"] / 36_000)
        + 0.8 * row["loan_amount"] / row["income"]
        + 0.008 * (row["term_months"] - 36)
        + 4.0 * np.maximum(row["debt_to_income"] - 0.35, 0)
        - 0.05 * np.minimum(row["credit_history_years"], 15)
        + 1.1 * late
        + 0.03 * np.maximum(row["open_accounts"] - 6, 0)
        + 1.8 * used
        + 1.2 * late * used
        - 0.08 * np.minimum(row["employment_years"], 10)
        + 0.25 * row["recent_inquiries"]
    )
    return logit


Layers = list[tuple[NDArray[np.float32], NDArray[np.float32]]]


def train(
    x: NDArray[np.float64], defaulted: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.float32], Layers]:
    """Mean and scale of the features, [F] each, and the (weight [in, out], bias [out]) of every layer.

    A fixed number of epochs rather than early stopping: an epoch more or less would be the one place
    where a last digit of another BLAS could change the result by much.
    """
    from sklearn.neural_network import MLPClassifier

    mean, scale = x.mean(axis=0), x.std(axis=0)
    network = MLPClassifier(
        HIDDEN, alpha=1e-3, batch_size=256, learning_rate_init=2e-3, shuffle=True, random_state=SEED
    )
    for _ in range(EPOCHS):
        network.partial_fit((x - mean) / scale, defaulted, classes=[False, True])
    layers = [
        (weight.astype(np.float32), bias.astype(np.float32))
        for weight, bias in zip(network.coefs_, network.intercepts_, strict=True)
    ]
    return mean.astype(np.float32), scale.astype(np.float32), layers


def predict(
    mean: NDArray[np.float32], scale: NDArray[np.float32], layers: Layers, x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The network in numpy, [N] from [N, F]."""
    y = (x - mean) / scale
    for weight, bias in layers[:-1]:
        y = np.maximum(y @ weight + bias, 0)
    weight, bias = layers[-1]
    return sigmoid(y @ weight + bias)[:, 0]


def export(mean: NDArray[np.float32], scale: NDArray[np.float32], layers: Layers) -> onnx.ModelProto:
    """`applicant` [N, F] in raw units -> `score_logit` and `default_probability`, [N, 1] each."""
    constants: dict[str, NDArray[np.float32]] = {"mean": mean, "scale": scale}
    nodes = [
        helper.make_node("Sub", ["applicant", "mean"], ["centred"], "centre"),
        helper.make_node("Div", ["centred", "scale"], ["standardised"], "standardise"),
    ]
    y = "standardised"
    for i, (weight, bias) in enumerate(layers, start=1):
        constants |= {f"weight_{i}": weight, f"bias_{i}": bias}
        last = i == len(layers)
        z = "score_logit" if last else f"hidden_{i}"
        nodes.append(helper.make_node("Gemm", [y, f"weight_{i}", f"bias_{i}"], [z], f"layer_{i}"))
        if not last:
            nodes.append(helper.make_node("Relu", [z], [f"active_{i}"], f"relu_{i}"))
            y = f"active_{i}"
    nodes.append(helper.make_node("Sigmoid", ["score_logit"], ["default_probability"], "probability"))
    graph = helper.make_graph(
        nodes,
        "credit",
        [float_value("applicant", len(FEATURES))],
        [float_value("score_logit", 1), float_value("default_probability", 1)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
        doc_string="A credit network on synthetic data, for demonstration: see README.md beside it.",
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="make_credit.py"
    )
    helper.set_model_props(model, {"features": ",".join(FEATURES), "cut_off": str(CUT_OFF)})
    onnx.checker.check_model(model, full_check=True)
    return model


def float_value(name: str, width: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width])


def write(credit: Credit, folder: Path) -> None:
    (folder / "credit.onnx").write_bytes(credit.model.SerializeToString(deterministic=True))
    write_csv(folder / "references.csv", credit.references)
    write_csv(folder / "near_threshold.csv", credit.near_threshold)
    write_csv(folder / "applicants.csv", np.array(APPLICANTS, dtype=np.float64))
    instances = [dict(zip(FEATURES, row, strict=True)) for row in APPLICANTS]
    lines = ",\n".join("  " + json.dumps(instance) for instance in instances)
    (folder / "applicants.json").write_text(f'{{"instances": [\n{lines}\n]}}\n', encoding="utf-8")


def write_csv(path: Path, rows: NDArray[np.float64]) -> None:
    """A header of feature names, then numbers in the precision of FEATURES."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FEATURES)
        writer.writerows(
            [as_written(*cell) for cell in zip(row, FEATURES.values(), strict=True)] for row in rows
        )


def as_written(value: float, places: int) -> str:
    return f"{value:.{max(places, 0)}f}"


def sigmoid(x: NDArray[Any]) -> NDArray[np.float64]:
    y: NDArray[np.float64] = 1 / (1 + np.exp(-x))
    return y


if __name__ == "__main__":
    main()
