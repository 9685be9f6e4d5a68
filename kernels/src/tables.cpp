// The lookup of numbers in tables. It is compiled once for each ARCHITECTURE, a namespace.
//
// Each sum has one order, whatever the number of rows: table by table within a batch of tables, then batch by batch. So a
// row's sums are the same bits, alone or among others, in each of the two ways below and on each processor.
#include "tables.h"

#include <cstring>

namespace ARCHITECTURE {
namespace {

constexpr int64_t FEW = 4;  // rows that are faster one by one
constexpr size_t LINE = 64;  // bytes that memory gives at once

// -- ranks of features --------------------------------------------------------------------------------------------

template <bool is_strict, typename X>
int16_t count_passed(const X* bounds, size_t count, X x) {
  auto passes = [x](X bound) { return is_strict ? x > bound : x >= bound; };
  const X* at = bounds;
  while (count > 1) {
    const size_t half = count / 2;
    at += half * passes(at[half - 1]);  // no branch: it would be a guess
    count -= half;
  }
  return static_cast<int16_t>(at - bounds + (count && passes(*at)));
}

// Writes the ranks of some rows, `stride` apart for each rank.
template <typename X>
void rank_rows(const Tables& tables, const X* all_bounds, const X* x, int64_t features, int64_t rows, int16_t* y,
               int64_t stride) {
  for (const Rank& rank : tables.ranks) {
    const X* bounds = all_bounds + rank.first;
    for (int64_t r = 0; r < rows; ++r) {
      const X number = x[r * features + rank.feature];
      y[r] = number != number   ? rank.when_missing
             : rank.is_strict   ? count_passed<true>(bounds, rank.count, number)
                                : count_passed<false>(bounds, rank.count, number);
    }
    y += stride;
  }
}

void rank_rows(const TablesCall& call, int64_t begin, int64_t rows, int16_t* y, int64_t stride) {
  const Tables& tables = *call.tables;
  const int64_t at = begin * call.features;
  if (call.x_is_double)
    rank_rows(tables, tables.bounds.data(), static_cast<const double*>(call.x) + at, call.features, rows, y, stride);
  else
    rank_rows(tables, tables.float_bounds.data(), static_cast<const float*>(call.x) + at, call.features, rows, y, stride);
}

// Asks memory for numbers that are read soon.
template <typename T>
void prefetch(const T* numbers, size_t count) {
  const char* bytes = reinterpret_cast<const char*>(numbers);
  for (size_t at = 0; at < count * sizeof(T); at += LINE) __builtin_prefetch(bytes + at);
  __builtin_prefetch(bytes + count * sizeof(T) - 1);
}

// -- one row ------------------------------------------------------------------------------------------------------

// Memory that holds the rows between one call and the next.
template <typename T>
struct RowMemory {
  std::vector<int16_t> ranks;
  std::vector<const T*> places;
  std::vector<T> sums;
};

template <typename T>
void look_up_row(const TablesCall& call, int64_t row, RowMemory<T>& memory) {
  const Tables& tables = *call.tables;
  const T* numbers = static_cast<const T*>(call.numbers);
  T* total = static_cast<T*>(call.output) + row * static_cast<int64_t>(tables.sums);
  memory.ranks.resize(tables.ranks.size());
  memory.places.resize(tables.tables.size());
  memory.sums.assign(tables.sums, T(0));
  const int16_t* ranks = memory.ranks.data();
  const T** places = memory.places.data();
  T* sums = memory.sums.data();
  for (size_t c = 0; c < tables.sums; ++c) total[c] = T(0);
  rank_rows(call, row, 1, memory.ranks.data(), 1);
  size_t t = 0;
  for (size_t end : tables.batches) {
    for (size_t i = t; i < end; ++i) {
      const Table& table = tables.tables[i];
      const Slot* slots = tables.slots.data() + table.first_slot;
      int16_t state = 0;
      for (uint32_t s = 0; s < table.slots; ++s)
        state = static_cast<int16_t>(state + (-(ranks[slots[s].rank] > slots[s].position) & slots[s].step));
      state = state < 0 ? 0 : state < table.rows ? state : static_cast<int16_t>(table.rows - 1);
      places[i] = numbers + table.first + state * static_cast<int64_t>(table.width);
      prefetch(places[i], table.width);
    }
    for (; t < end; ++t) {
      const Table& table = tables.tables[t];
      const uint32_t* columns = tables.columns.data() + table.first_column;
      for (uint32_t c = 0; c < table.width; ++c) sums[columns[c]] += places[t][c];
    }
    for (size_t c = 0; c < tables.sums; ++c) {
      total[c] += sums[c];
      sums[c] = T(0);
    }
  }
}

// -- many rows ----------------------------------------------------------------------------------------------------

typedef int16_t Shorts __attribute__((vector_size(LANES * sizeof(int16_t))));
template <typename T>
struct Four;
template <>
struct Four<float> {
  typedef float Vector __attribute__((vector_size(16)));
  typedef int32_t Mask __attribute__((vector_size(16)));
};
template <>
struct Four<double> {
  typedef double Vector __attribute__((vector_size(32)));
  typedef int64_t Mask __attribute__((vector_size(32)));
};

#ifdef __clang__
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, typename Four<T>::Mask{i, j, k, l})
#endif

template <typename V, typename T>
V load(const T* from) {
  V vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// Adds `count` numbers of each row to the rows' sums, [.., rows].
template <unsigned count, typename T>
void add(const T* numbers, const int32_t* places, const uint32_t* columns, T* sums, int64_t rows) {
  using V = typename Four<T>::Vector;
  T* to[count];
  for (unsigned c = 0; c < count; ++c) to[c] = sums + columns[c] * rows;
  for (int64_t r = 0; r < rows; r += 4) {
    const V a = load<V>(numbers + places[r]), b = load<V>(numbers + places[r + 1]);
    const V c = load<V>(numbers + places[r + 2]), d = load<V>(numbers + places[r + 3]);
    const V ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5);
    const V ab_last = SHUFFLE(a, b, 2, 6, 3, 7), cd_last = SHUFFLE(c, d, 2, 6, 3, 7);
    const V by_column[4] = {SHUFFLE(ab, cd, 0, 1, 4, 5), SHUFFLE(ab, cd, 2, 3, 6, 7),
                            SHUFFLE(ab_last, cd_last, 0, 1, 4, 5), SHUFFLE(ab_last, cd_last, 2, 3, 6, 7)};
    for (unsigned k = 0; k < count; ++k) {
      const V sum = load<V>(to[k] + r) + by_column[k];
      std::memcpy(to[k] + r, &sum, sizeof sum);
    }
  }
}

// Writes the places within a table of the numbers of each row.
template <typename T>
void find(const Tables& tables, const Table& table, const T* numbers, const int16_t* ranks, int64_t rows,
          int32_t* places) {
  const Slot* slots = tables.slots.data() + table.first_slot;
  const Shorts most = Shorts{} + static_cast<int16_t>(table.rows - 1);
  for (int64_t r = 0; r < rows; r += LANES) {
    Shorts state{};
    for (uint32_t s = 0; s < table.slots; ++s) {
      const Shorts rank = load<Shorts>(ranks + slots[s].rank * rows + r);
      state += (rank > slots[s].position) & slots[s].step;
    }
    state = state < 0 ? Shorts{} : state;
    state = state > most ? most : state;
    for (int64_t k = 0; k < LANES; ++k) places[r + k] = state[k] * static_cast<int32_t>(table.width);
  }
  for (int64_t r = 0; r < rows; ++r) prefetch(numbers + table.first + places[r], table.width);
}

template <typename T>
void look_up_rows(const TablesCall& call, int64_t begin, int64_t end) {
  const Tables& tables = *call.tables;
  const T* numbers = static_cast<const T*>(call.numbers);
  const int64_t given = end - begin, rows = (given + LANES - 1) / LANES * LANES;
  const size_t size = tables.sums * static_cast<size_t>(rows);
  std::vector<int16_t> ranks(tables.ranks.size() * static_cast<size_t>(rows));
  std::vector<int32_t> places(2 * static_cast<size_t>(rows));  // of a table, and of the next one
  std::vector<T> sums(size), total(size);
  rank_rows(call, begin, given, ranks.data(), rows);
  auto places_of = [&](size_t table) { return places.data() + (table % 2 ? rows : 0); };
  auto find_next = [&](size_t table) {
    if (table < tables.tables.size())
      find(tables, tables.tables[table], numbers, ranks.data(), rows, places_of(table));
  };
  find_next(0);
  size_t t = 0;
  for (size_t last : tables.batches) {
    for (; t < last; ++t) {
      find_next(t + 1);
      const Table& table = tables.tables[t];
      const T* from = numbers + table.first;
      const uint32_t* columns = tables.columns.data() + table.first_column;
      const int32_t* at = places_of(t);
      uint32_t c = 0;
      for (; c + 4 <= table.width; c += 4) add<4>(from + c, at, columns + c, sums.data(), rows);
      switch (table.width - c) {
        case 1: add<1>(from + c, at, columns + c, sums.data(), rows); break;
        case 2: add<2>(from + c, at, columns + c, sums.data(), rows); break;
        case 3: add<3>(from + c, at, columns + c, sums.data(), rows); break;
        default: break;
      }
    }
    for (size_t i = 0; i < size; ++i) {
      total[i] += sums[i];
      sums[i] = T(0);
    }
  }
  T* output = static_cast<T*>(call.output) + begin * static_cast<int64_t>(tables.sums);
  for (int64_t r = 0; r < given; ++r)
    for (size_t c = 0; c < tables.sums; ++c) *output++ = total[c * static_cast<size_t>(rows) + static_cast<size_t>(r)];
}

}  // namespace

template <typename T>
void look_up(const TablesCall& call, int64_t begin, int64_t end) {
  if (end - begin > FEW) return look_up_rows<T>(call, begin, end);
  RowMemory<T> memory;
  for (int64_t row = begin; row < end; ++row) look_up_row<T>(call, row, memory);
}

template void look_up<float>(const TablesCall&, int64_t, int64_t);
template void look_up<double>(const TablesCall&, int64_t, int64_t);

}  // namespace ARCHITECTURE
