// Tables of numbers, of which a row of features looks up some, and their sums.
//
// compiler/rationale/trees/program.py describes the text from which they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// A feature's rank: how many of some ascending bounds its number has reached or passed.
struct Rank {
  int64_t feature;
  bool is_strict;         // a number passes a bound; it does not reach it
  int16_t when_missing;   // the rank of NaN
  size_t first, count;    // the bounds
};

// A step within a table, for rows whose rank is larger than `position`.
struct Slot {
  uint16_t rank;
  int16_t position, step;
};

// Rows of `width` numbers each; one of them is for a row of features.
struct Table {
  int64_t first;  // the place of its first number
  int16_t rows;
  uint32_t width, slots;
  size_t first_column, first_slot;
};

struct Tables {
  std::vector<Rank> ranks;
  std::vector<double> bounds;
  std::vector<float> float_bounds;  // the same
  std::vector<Slot> slots;
  std::vector<uint32_t> columns;  // for each number of a row of a table, the sum to which it belongs
  std::vector<Table> tables;
  std::vector<size_t> batches;  // ends of tables whose numbers are added up first
  size_t sums = 0;
  int64_t features = 0, numbers = 0;  // the least that the inputs hold
  double cost = 0;  // estimated nanoseconds for a row
};

// Reads a program; throws std::invalid_argument, with a text that says what is wrong.
Tables parse_tables(const std::string& program);

constexpr int64_t BEYOND = 3;  // numbers that may be read after a table's last one
constexpr int64_t LANES = 16;  // blocks of rows are padded to a multiple

struct TablesCall {
  const Tables* tables;
  const void *x, *numbers;
  bool x_is_double;
  int64_t features;  // of a row
  void* output;      // [rows, sums]
};

// Computes the rows from `begin` to `end` together.
template <typename T>
using Lookup = void (*)(const TablesCall& call, int64_t begin, int64_t end);

// The computation in the instructions of any x86-64 or other processor, and of one with AVX2 and FMA.
namespace plain { template <typename T> void look_up(const TablesCall& call, int64_t begin, int64_t end); }
namespace v3 { template <typename T> void look_up(const TablesCall& call, int64_t begin, int64_t end); }
