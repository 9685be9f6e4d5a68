// The computation of chains. It is compiled once for each ARCHITECTURE, a namespace.
#include "chain.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace ARCHITECTURE {
namespace {

#include "functions.h"

// -- operators of one, two and three numbers; conditions are 0 and 1 ------------------------------------------------

template <typename T, typename F>
void map(T* y, const T* a, int64_t n, F f) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = f(a[i]);
}

// Applies f to two operands, of which each may be one number for all.
template <typename T, typename F>
void map(T* y, const T* a, bool a_scalar, const T* b, bool b_scalar, int64_t n, F f) {
  if (b_scalar) {
    const T number = *b;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f(a[i], number);
  } else if (a_scalar) {
    const T number = *a;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f(number, b[i]);
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
  }
}

template <typename T, typename F>
void map(T* y, const T* a, const T* b, const T* c, int64_t n, F f) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i], c[i]);
}

template <typename T>
T largest(T a, T b) { return a < b || b != b ? b : a; }  // NaN if one is

template <typename T>
T least(T a, T b) { return b < a || b != b ? b : a; }

template <typename T>
void apply(Op op, T* y, const T* a, int64_t n) {
  switch (op) {
    case Op::Abs: return map(y, a, n, [](T x) { return std::fabs(x); });
    case Op::Erf: return map(y, a, n, [](T x) { return error_function(x); });
    case Op::Exp: return map(y, a, n, [](T x) { return exponential(x); });
    case Op::Log: return map(y, a, n, [](T x) { return logarithm(x); });
    case Op::Neg: return map(y, a, n, [](T x) { return -x; });
    case Op::Not: return map(y, a, n, [](T x) { return x == T(0) ? T(1) : T(0); });
    case Op::Reciprocal: return map(y, a, n, [](T x) { return T(1) / x; });
    case Op::Relu: return map(y, a, n, [](T x) { return largest(x, T(0)); });
    case Op::Sigmoid: return map(y, a, n, [](T x) { return T(1) / (T(1) + exponential(-x)); });
    case Op::Sign:
      return map(y, a, n, [](T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x; });
    case Op::Sqrt: return map(y, a, n, [](T x) { return std::sqrt(x); });
    case Op::Tanh: return map(y, a, n, [](T x) { return hyperbolic_tangent(x); });
    default: return map(y, a, n, [](T x) { return x; });
  }
}

template <typename T>
void apply(Op op, T* y, const T* a, bool as, const T* b, bool bs, int64_t n) {
  switch (op) {
    case Op::Add: return map(y, a, as, b, bs, n, [](T p, T q) { return p + q; });
    case Op::Sub: return map(y, a, as, b, bs, n, [](T p, T q) { return p - q; });
    case Op::Mul: return map(y, a, as, b, bs, n, [](T p, T q) { return p * q; });
    case Op::And: return map(y, a, as, b, bs, n, [](T p, T q) { return p * q; });
    case Op::Div: return map(y, a, as, b, bs, n, [](T p, T q) { return p / q; });
    case Op::Max: return map(y, a, as, b, bs, n, [](T p, T q) { return largest(p, q); });
    case Op::Or: return map(y, a, as, b, bs, n, [](T p, T q) { return p > q ? p : q; });
    case Op::Min: return map(y, a, as, b, bs, n, [](T p, T q) { return least(p, q); });
    case Op::Equal: return map(y, a, as, b, bs, n, [](T p, T q) { return p == q ? T(1) : T(0); });
    case Op::Greater: return map(y, a, as, b, bs, n, [](T p, T q) { return p > q ? T(1) : T(0); });
    case Op::GreaterOrEqual: return map(y, a, as, b, bs, n, [](T p, T q) { return p >= q ? T(1) : T(0); });
    case Op::Less: return map(y, a, as, b, bs, n, [](T p, T q) { return p < q ? T(1) : T(0); });
    default: return map(y, a, as, b, bs, n, [](T p, T q) { return p <= q ? T(1) : T(0); });
  }
}

template <typename T>
void apply(Op op, T* y, const T* a, const T* b, const T* c, int64_t n) {
  if (op == Op::Where) return map(y, a, b, c, n, [](T p, T q, T r) { return p != T(0) ? q : r; });
  return map(y, a, b, c, n, [](T x, T low, T high) { return least(largest(x, low), high); });
}

// -- rows ---------------------------------------------------------------------------------------------------------

// Reduces a row by several partial results, whose order depends on the row's length alone.
template <typename T, typename F>
T reduce(const T* a, int64_t n, T start, F f) {
  constexpr int64_t LANES = 64 / sizeof(T);
  if (n < 2 * LANES) {
    T result = start;
    for (int64_t i = 0; i < n; ++i) result = f(result, a[i]);
    return result;
  }
  T lanes[LANES];
  for (int64_t k = 0; k < LANES; ++k) lanes[k] = start;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int64_t k = 0; k < LANES; ++k) lanes[k] = f(lanes[k], a[i + k]);
  for (; i < n; ++i) lanes[i % LANES] = f(lanes[i % LANES], a[i]);
  for (int64_t width = LANES / 2; width; width /= 2)
    for (int64_t k = 0; k < width; ++k) lanes[k] = f(lanes[k], lanes[k + width]);
  return lanes[0];
}

template <typename T>
void reduce_rows(Op op, T* y, const T* a, int64_t rows, int64_t row) {
  for (int64_t i = 0; i < rows; ++i, a += row) {
    if (op == Op::ReduceMax) {
      y[i] = reduce(a, row, -std::numeric_limits<T>::infinity(), [](T p, T q) { return largest(p, q); });
    } else {
      y[i] = reduce(a, row, T(0), [](T p, T q) { return p + q; });
      if (op == Op::ReduceMean) y[i] /= static_cast<T>(row);
    }
  }
}

template <typename T>
void fill(T* y, T number, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = number;
}

// -- inputs -------------------------------------------------------------------------------------------------------

// Returns n elements of an input from position `begin` of the output on: in place, or copied to `slot`.
template <typename T>
const T* load(const Layout& layout, int64_t begin, int64_t n, T* slot) {
  const T* data = static_cast<const T*>(layout.data);
  const auto &sizes = layout.sizes, &strides = layout.strides;
  const int last = static_cast<int>(sizes.size()) - 1;
  int64_t index[16], offset = 0, rest = begin;
  for (int k = last; k >= 0; --k) {
    index[k] = rest % sizes[k];
    rest /= sizes[k];
    offset += index[k] * strides[k];
  }
  const int64_t run = sizes[last];
  if (strides[last] && index[last] + n <= run) return data + offset;
  for (int64_t done = 0;;) {
    const int64_t count = run - index[last] < n - done ? run - index[last] : n - done;
    if (strides[last])
      std::memcpy(slot + done, data + offset, count * sizeof(T));
    else
      fill(slot + done, data[offset], count);
    done += count;
    if (done == n) return slot;
    offset -= index[last] * strides[last];
    index[last] = 0;
    for (int k = last - 1; k >= 0; --k) {
      offset += strides[k];
      if (++index[k] < sizes[k]) break;
      offset -= sizes[k] * strides[k];
      index[k] = 0;
    }
  }
}

}  // namespace

template <typename T>
void compute(const Call& call, int64_t begin, int64_t end) {
  const auto& steps = call.chain->steps;
  static thread_local std::vector<T> memory;
  static thread_local std::vector<const T*> values;
  const size_t needed = call.chain->slots * static_cast<size_t>(call.block);
  if (memory.size() < needed) memory.resize(needed);
  values.resize(steps.size());
  auto slot_of = [&](const Step& step) { return memory.data() + step.slot * call.block; };
  auto is_scalar = [&](int step) { return steps[step].op == Op::Load && call.layouts[step].is_scalar; };
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!is_scalar(static_cast<int>(i))) continue;
    fill(slot_of(steps[i]), *static_cast<const T*>(call.layouts[i].data), call.block);
    values[i] = slot_of(steps[i]);
  }
  for (int64_t at = begin; at < end; at += call.block) {
    const int64_t elements = end - at < call.block ? end - at : call.block;
    const int64_t rows = elements / call.row;
    for (size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      const int64_t n = step.per_row ? rows : elements;
      if (step.op == Op::Load) {
        if (!call.layouts[i].is_scalar)
          values[i] = load(call.layouts[i], step.per_row ? at / call.row : at, n, slot_of(step));
        continue;
      }
      T* y = i + 1 == steps.size() ? static_cast<T*>(call.output) + at : slot_of(step);
      const T* a = values[step.operands[0]];
      if (step.op == Op::Repeat) {
        for (int64_t r = 0; r < rows; ++r) fill(y + r * call.row, a[r], call.row);
      } else if (step.op == Op::ReduceSum || step.op == Op::ReduceMean || step.op == Op::ReduceMax) {
        reduce_rows(step.op, y, a, rows, call.row);
      } else if (step.operand_count == 1) {
        apply(step.op, y, a, n);
      } else if (step.operand_count == 2) {
        const bool as = is_scalar(step.operands[0]), bs = is_scalar(step.operands[1]);
        apply(step.op, y, a, as && !bs, values[step.operands[1]], bs, n);
      } else {
        apply(step.op, y, a, values[step.operands[1]], values[step.operands[2]], n);
      }
      values[i] = y;
    }
  }
}

template void compute<float>(const Call&, int64_t, int64_t);
template void compute<double>(const Call&, int64_t, int64_t);

}  // namespace ARCHITECTURE
