// The parser of programs.
#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>

#include "chain.h"

namespace {

struct Operator {
  Op op;
  bool reduces;
  int operands;
  double nanoseconds;
};

const std::map<std::string, Operator> OPERATORS = {
#define ONE(name, cost, ...) {#name, {Op::name, false, 1, cost}},
#define TWO(name, cost, ...) {#name, {Op::name, false, 2, cost}},
#define THREE(name, cost, ...) {#name, {Op::name, false, 3, cost}},
#define ROW(name, cost, ...) {#name, {Op::name, true, 1, cost}},
#include "operators.h"
};

class Parser {
 public:
  Parser(const std::string& program, size_t inputs) : program_(program) { chain_.inputs = inputs; }

  Chain parse() {
    std::istringstream lines(program_);
    std::string line;
    while (std::getline(lines, line, ';')) read(line);
    if (results_.empty() || chain_.steps.back().per_row) fail("no output");
    assign_slots();
    return std::move(chain_);
  }

 private:
  void read(const std::string& line) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "rows") {
      if (!(words >> chain_.row_axes) || !(words >> std::ws).eof()) fail(line);
      return;
    }
    const bool per_row = name.rfind("r.", 0) == 0;
    const auto found = OPERATORS.find(per_row ? name.substr(2) : name);
    if (found == OPERATORS.end()) fail(line);
    const Operator& known = found->second;
    if ((per_row && known.reduces) || ((per_row || known.reduces) && !chain_.row_axes)) fail(line);
    Step step{known.op, known.reduces, per_row || known.reduces, {0, 0, 0}, known.operands, 0};
    for (int i = 0; i < step.operand_count; ++i) {
      size_t number;
      if (!(words >> number) || number >= chain_.inputs + results_.size()) fail(line);
      step.operands[i] = value(number, per_row, line);
    }
    if (!(words >> std::ws).eof()) fail(line);
    chain_.cost += known.nanoseconds;
    chain_.steps.push_back(step);
    results_.push_back(static_cast<int>(chain_.steps.size()) - 1);
  }

  // Returns the step that gives a value, for each row or for each element.
  int value(size_t number, bool per_row, const std::string& line) {
    auto key = std::make_pair(number, per_row);
    auto found = converted_.find(key);
    if (found != converted_.end()) return found->second;
    if (number < chain_.inputs) return converted_[key] = add({Op::Load, false, per_row, {static_cast<int>(number)}, 0, 0});
    int result = results_[number - chain_.inputs];
    if (chain_.steps[result].per_row == per_row) return result;
    if (per_row) fail(line);
    return converted_[key] = add({Op::Repeat, false, false, {result}, 1, 0});
  }

  int add(Step step) {
    chain_.cost += .1;
    chain_.steps.push_back(step);
    return static_cast<int>(chain_.steps.size()) - 1;
  }

  // Gives each step the place of a result that nobody reads any more.
  void assign_slots() {
    auto& steps = chain_.steps;
    std::vector<int> last(steps.size(), -1);
    for (size_t i = 0; i < steps.size(); ++i)
      for (int k = 0; k < steps[i].operand_count; ++k) last[steps[i].operands[k]] = static_cast<int>(i);
    std::vector<int> free;
    for (size_t i = 0; i < steps.size(); ++i) {
      // an input keeps a place of its own: a number is written to it once for all blocks
      if (free.empty() || steps[i].op == Op::Load) free.push_back(static_cast<int>(chain_.slots++));
      steps[i].slot = free.back();
      free.pop_back();
      for (int k = 0; k < steps[i].operand_count; ++k) {
        int operand = steps[i].operands[k];
        bool again = std::find(steps[i].operands, steps[i].operands + k, operand) != steps[i].operands + k;
        if (!again && last[operand] == static_cast<int>(i) && steps[operand].op != Op::Load)
          free.push_back(steps[operand].slot);
      }
    }
  }

  [[noreturn]] void fail(const std::string& line) {
    throw std::invalid_argument("rationale:Fused cannot read '" + line + "' of its program: " + program_);
  }

  const std::string& program_;
  Chain chain_;
  std::vector<int> results_;                       // the step of each instruction
  std::map<std::pair<size_t, bool>, int> converted_;  // steps of inputs and of repeated rows
};

}  // namespace

Chain parse_chain(const std::string& program, size_t inputs) { return Parser(program, inputs).parse(); }
