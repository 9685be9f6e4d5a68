// The computation of chains. It is compiled once for each ARCHITECTURE, a namespace.
#include "chain.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

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
T largest(T a, T b) { return a > b || a != a ? a : b; }

template <typename T>
T least(T a, T b) { return a < b || a != a ? a : b; }

template <typename T>
void apply(Op op, T* y, const T* a, int64_t n) {
  switch (op) {
#define ONE(name, cost, value) case Op::name: return map(y, a, n, [](T x) { return value; });
#include "operators.h"
    default: return;
  }
}

template <typename T>
void apply(Op op, T* y, const T* a, bool as, const T* b, bool bs, int64_t n) {
  switch (op) {
#define TWO(name, cost, value) case Op::name: return map(y, a, as, b, bs, n, [](T a, T b) { return value; });
#include "operators.h"
    default: return;
  }
}

template <typename T>
void apply(Op op, T* y, const T* a, const T* b, const T* c, int64_t n) {
  switch (op) {
#define THREE(name, cost, value) case Op::name: return map(y, a, b, c, n, [](T a, T b, T c) { return value; });
#include "operators.h"
    default: return;
  }
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
T reduce(Op op, const T* a, int64_t n) {
  switch (op) {
#define ROW(name, cost, start, value) case Op::name: return reduce(a, n, start, [](T a, T b) { return value; });
#include "operators.h"
    default: return T(0);
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

constexpr size_t KEPT_BYTES = 1 << 20;  // of a thread, between calls; long rows need more

// Memory of a thread, whose pages the system gives when they are written.
template <typename T>
class Scratch {
 public:
  T* of(size_t size) {
    if (size > size_) {
      memory_.reset(new T[size]);
      size_ = size;
    }
    return memory_.get();
  }

  void keep(size_t most) {
    if (size_ > most) memory_.reset(), size_ = 0;
  }

 private:
  std::unique_ptr<T[]> memory_;
  size_t size_ = 0;
};

}  // namespace

template <typename T>
void compute(const Call& call, int64_t begin, int64_t end) {
  const auto& steps = call.chain->steps;
  static thread_local Scratch<T> scratch;
  static thread_local std::vector<const T*> values;
  T* memory = scratch.of(call.chain->slots * static_cast<size_t>(call.block));
  values.resize(steps.size());
  auto slot_of = [&](const Step& step) { return memory + step.slot * call.block; };
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
      } else if (step.reduces) {
        for (int64_t r = 0; r < rows; ++r) y[r] = reduce(step.op, a + r * call.row, call.row);
        if (step.op == Op::ReduceMean) map(y, y, rows, [&](T x) { return x / static_cast<T>(call.row); });
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
  scratch.keep(KEPT_BYTES / sizeof(T));
}

template void compute<float>(const Call&, int64_t, int64_t);
template void compute<double>(const Call&, int64_t, int64_t);

}  // namespace ARCHITECTURE
