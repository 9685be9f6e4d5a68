// The parser of programs of tables.
#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "tables.h"

namespace {

constexpr int64_t MOST_SUMS = 1 << 24, MOST_NUMBERS = int64_t{1} << 40;
constexpr int64_t MOST_WIDTH = 1 << 16;  // times the most rows, a place within a table is an int32
constexpr size_t NUMBERS_OF_A_BATCH = 16;  // for each sum

class Parser {
 public:
  explicit Parser(std::string_view program) : rest_(program) {}

  Tables parse() {
    while (!rest_.empty()) {
      const size_t end = std::min(rest_.find(';'), rest_.size());
      line_ = at_ = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      read();
    }
    if (!tables_.sums) fail("it has no line 'columns'");
    tables_.float_bounds.assign(tables_.bounds.begin(), tables_.bounds.end());
    order();
    return std::move(tables_);
  }

 private:
  void read() {
    const std::string_view name = word();
    if (name == "columns") {
      if (tables_.sums) fail(line_);
      tables_.sums = static_cast<size_t>(integer(1, MOST_SUMS));
    } else if (name == "table") {
      read_table();
    } else if (name == "missing") {
      add_rank({feature(), false, 1, tables_.bounds.size(), 0});
    } else if (name == "reached" || name == "reached_or_missing" || name == "passed" || name == "passed_or_missing") {
      read_bounds(name.front() == 'p', name.back() == 'g');
    } else {
      fail(line_);
    }
    if (!at_.empty()) fail(line_);
  }

  void read_bounds(bool is_strict, bool with_missing) {
    Rank rank{feature(), is_strict, 0, tables_.bounds.size(), 0};
    while (!at_.empty()) tables_.bounds.push_back(parsed<double>());
    rank.count = tables_.bounds.size() - rank.first;
    if (rank.count > static_cast<size_t>(std::numeric_limits<int16_t>::max())) fail(line_);
    if (with_missing) rank.when_missing = static_cast<int16_t>(rank.count);
    add_rank(rank);
  }

  void add_rank(const Rank& rank) {
    if (tables_.ranks.size() > std::numeric_limits<uint16_t>::max()) fail(line_);
    tables_.ranks.push_back(rank);
  }

  int64_t feature() {
    const int64_t number = integer(0, MOST_SUMS - 1);
    tables_.features = std::max(tables_.features, number + 1);
    return number;
  }

  void read_table() {
    constexpr int16_t most = std::numeric_limits<int16_t>::max();
    Table table{};
    table.first = integer(0, MOST_NUMBERS);
    table.rows = static_cast<int16_t>(integer(1, most));
    table.width = static_cast<uint32_t>(integer(0, MOST_WIDTH));
    table.first_column = tables_.columns.size();
    for (uint32_t c = 0; c < table.width; ++c)
      tables_.columns.push_back(static_cast<uint32_t>(integer(0, static_cast<int64_t>(tables_.sums) - 1)));
    table.first_slot = tables_.slots.size();
    for (; !at_.empty(); ++table.slots) {
      const auto rank = static_cast<uint16_t>(integer(0, static_cast<int64_t>(tables_.ranks.size()) - 1));
      const auto position = static_cast<int16_t>(integer(0, most));
      tables_.slots.push_back({rank, position, static_cast<int16_t>(integer(-most, most))});
    }
    tables_.numbers = std::max(tables_.numbers, table.first + table.rows * static_cast<int64_t>(table.width) + BEYOND);
    tables_.cost += .7 * table.width + table.slots + 5;
    tables_.tables.push_back(table);
  }

  // Puts tables of one form next to each other, for whose loops a processor then knows the ends, and cuts batches.
  void order() {
    auto& tables = tables_.tables;
    std::stable_sort(tables.begin(), tables.end(), [](const Table& a, const Table& b) {
      return a.slots != b.slots ? a.slots < b.slots : a.width < b.width;
    });
    size_t count = 0;
    for (size_t t = 0; t < tables.size(); ++t) {
      count += tables[t].width;
      if (count >= NUMBERS_OF_A_BATCH * tables_.sums || t + 1 == tables.size()) {
        tables_.batches.push_back(t + 1);
        count = 0;
      }
    }
  }

  int64_t integer(int64_t least, int64_t most) {
    const int64_t number = parsed<int64_t>();
    if (number < least || number > most) fail(line_);
    return number;
  }

  template <typename T>
  T parsed() {
    const std::string_view text = word();
    T number;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) fail(line_);
    return number;
  }

  std::string_view word() {
    const size_t end = std::min(at_.find(' '), at_.size());
    const std::string_view text = at_.substr(0, end);
    at_.remove_prefix(std::min(end + 1, at_.size()));
    return text;
  }

  [[noreturn]] void fail(std::string_view line) {
    throw std::invalid_argument("rationale:Tables cannot read its program: " + std::string(line.substr(0, 200)));
  }

  std::string_view rest_, line_, at_;
  Tables tables_;
};

}  // namespace

Tables parse_tables(const std::string& program) { return Parser(program).parse(); }
