// A chain of elementwise operators, and its computation block by block.
//
// compiler/rationale/artifact/finishing/fused.py describes the text from which a chain is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

enum class Op : uint8_t {
#define ONE(name, ...) name,
#define TWO(name, ...) name,
#define THREE(name, ...) name,
#define ROW(name, ...) name,
#include "operators.h"
  Load, Repeat,  // an input; the number of each row, once for each of its elements
};

// One step. Values are the steps' results, numbered as the steps are.
struct Step {
  Op op;
  bool reduces;       // adds up rows
  bool per_row;       // one number for each row
  int operands[3];    // steps; for Load, the number of the input
  int operand_count;
  int slot;           // the place of the result among the blocks that a thread works in
};

struct Chain {
  std::vector<Step> steps;
  size_t row_axes = 0;  // the last axes, which form a row
  size_t inputs = 0;
  size_t slots = 0;
  double cost = 0;  // estimated nanoseconds for an element
};

// Reads a program; throws std::invalid_argument, with a text that says what is wrong.
Chain parse_chain(const std::string& program, size_t inputs);

// One input, as the steps read it: axes that lie next to each other in memory are one.
struct Layout {
  const void* data;
  bool is_scalar;
  std::vector<int64_t> sizes, strides;  // in elements; the last stride is 0 or 1
};

// A call: the chain, its inputs and output, and the blocks into which the output is cut.
struct Call {
  const Chain* chain;
  std::vector<Layout> layouts;  // for each step; only those of Load are used
  void* output;
  int64_t total;       // elements of the output
  int64_t row;         // elements of a row, 1 without rows
  int64_t block;       // elements of a block: whole rows
};

// Computes the elements from `begin` to `end`, both at the beginning of a block or at the end of all.
template <typename T>
using Compute = void (*)(const Call& call, int64_t begin, int64_t end);

// The computation in the instructions of any x86-64 or other processor, and of one with AVX2 and FMA.
namespace plain { template <typename T> void compute(const Call& call, int64_t begin, int64_t end); }
namespace v3 { template <typename T> void compute(const Call& call, int64_t begin, int64_t end); }
