// The operator rationale:Fused0, which is also Fused1 and so on: a chain of elementwise operators, computed in one pass
// over memory. A file has a function of its own for each chain, and functions need different names.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "chain.h"
#include "onnxruntime.h"
#include "tables.h"

namespace {

constexpr int64_t BLOCK_BYTES = 4096;        // of each value that a thread works on: they stay in its cache
constexpr double TASK_NANOSECONDS = 20'000;  // work that is worth a thread
constexpr int MOST_CHAINS = 64;              // different ones of a file; fused.py makes no more

// An error that ONNX Runtime returned.
struct Failure {
  OrtStatus* status;
};

void demand(OrtStatus* status) {
  if (status) throw Failure{status};
}

template <typename T>
Compute<T> fastest() {
#ifdef HAVE_V3
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return v3::compute<T>;
#endif
  return plain::compute<T>;
}

struct Operator : OrtCustomOp {
  ElementType type;
  std::string name;
};

struct Kernel {
  const OrtApi* api;
  ElementType type;
  std::string program;
  std::map<size_t, Chain> chains;  // by number of inputs; a node has one
  std::mutex mutex;

  const Chain& chain(size_t inputs) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = chains.find(inputs);
    return found == chains.end() ? chains[inputs] = parse_chain(program, inputs) : found->second;
  }
};

using Dims = std::vector<int64_t>;

struct Input {
  const void* data;
  Dims dims;
};

Input read_input(const OrtApi& api, const OrtKernelContext* context, size_t i) {
  const OrtValue* value;
  demand(api.input(context, i, &value));
  OrtTensorTypeAndShapeInfo* info;
  demand(api.shape(value, &info));
  auto release = [&api](OrtTensorTypeAndShapeInfo* given) { api.release(given); };
  std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owner(info, release);
  size_t rank;
  demand(api.rank(info, &rank));
  Input input{nullptr, Dims(rank)};
  if (rank) demand(api.dims(info, input.dims.data(), rank));
  void* data;
  demand(api.data(const_cast<OrtValue*>(value), &data));
  input.data = data;
  return input;
}

Dims broadcast(const std::vector<Input>& inputs) {
  size_t rank = 0;
  for (const auto& input : inputs) rank = std::max(rank, input.dims.size());
  Dims dims(rank, 1);
  for (const auto& input : inputs)
    for (size_t k = 0; k < input.dims.size(); ++k) {
      int64_t& dim = dims[rank - input.dims.size() + k];
      if (input.dims[k] != 1 && dim != 1 && dim != input.dims[k])
        throw std::invalid_argument("rationale:Fused: the shapes of its inputs do not broadcast together");
      if (input.dims[k] != 1) dim = input.dims[k];
    }
  return dims;
}

int64_t product(const int64_t* begin, const int64_t* end) {
  int64_t result = 1;
  for (; begin < end; ++begin) result *= *begin;
  return result;
}

// Returns how the elements of an input lie in memory, seen from the first `rank` axes of the output; throws
// std::invalid_argument if it has several elements along the other axes.
Layout layout_of(const Input& input, const Dims& output, size_t rank) {
  Layout layout{input.data, product(input.dims.data(), input.dims.data() + input.dims.size()) == 1, {}, {}};
  const size_t missing = output.size() - input.dims.size();
  int64_t stride = product(input.dims.data(), input.dims.data() + input.dims.size());
  for (size_t k = 0; k < rank; ++k) {
    const int64_t dim = k < missing ? 1 : input.dims[k - missing];
    stride /= dim;
    if (output[k] == 1) continue;
    const int64_t step = dim == 1 ? 0 : stride;
    if (!layout.sizes.empty() && layout.strides.back() == step * output[k]) {
      layout.sizes.back() *= output[k];
      layout.strides.back() = step;
    } else {
      layout.sizes.push_back(output[k]);
      layout.strides.push_back(step);
    }
  }
  if (stride != 1) throw std::invalid_argument("rationale:Fused: an input has several numbers for a row, not one");
  if (layout.sizes.empty()) layout.sizes = {1}, layout.strides = {1};
  return layout;
}

template <typename T>
void run(Kernel& kernel, OrtKernelContext* context) {
  const OrtApi& api = *kernel.api;
  size_t count;
  demand(api.input_count(context, &count));
  std::vector<Input> inputs;
  for (size_t i = 0; i < count; ++i) inputs.push_back(read_input(api, context, i));
  const Chain& chain = kernel.chain(count);
  const Dims dims = broadcast(inputs);
  if (dims.size() < chain.row_axes || dims.size() > 16)
    throw std::invalid_argument("rationale:Fused: its inputs have too few axes, or more than 16");
  OrtValue* value;
  demand(api.output(context, 0, dims.data(), dims.size(), &value));
  Call call{&chain, {}, nullptr, product(dims.data(), dims.data() + dims.size()), 1, 0};
  if (!call.total) return;
  demand(api.data(value, &call.output));
  const size_t outer = dims.size() - chain.row_axes;
  call.row = product(dims.data() + outer, dims.data() + dims.size());
  call.block = std::max<int64_t>(1, BLOCK_BYTES / static_cast<int64_t>(sizeof(T)) / call.row) * call.row;
  for (const Step& step : chain.steps)
    call.layouts.push_back(step.op == Op::Load
                               ? layout_of(inputs[step.operands[0]], dims, step.per_row ? outer : dims.size())
                               : Layout{});
  static const Compute<T> compute = fastest<T>();
  const int64_t blocks = (call.total + call.block - 1) / call.block;
  const int64_t worthwhile = static_cast<int64_t>(call.total * chain.cost / TASK_NANOSECONDS);
  const int64_t tasks = std::max<int64_t>(1, std::min(blocks, worthwhile));
  if (tasks == 1) return compute(call, 0, call.total);
  struct Work {
    const Call& call;
    int64_t blocks, tasks;
    std::atomic<bool> is_out_of_memory{false};
  } work{call, blocks, tasks};
  demand(api.parallel_for(
      context,
      [](void* data, size_t i) {
        Work& work = *static_cast<Work*>(data);
        const int64_t begin = work.blocks * static_cast<int64_t>(i) / work.tasks;
        const int64_t end = work.blocks * static_cast<int64_t>(i + 1) / work.tasks;
        try {
          compute(work.call, begin * work.call.block, std::min(end * work.call.block, work.call.total));
        } catch (const std::bad_alloc&) {  // nothing may be thrown through ONNX Runtime's threads
          work.is_out_of_memory = true;
        }
      },
      static_cast<size_t>(tasks), &work));
  if (work.is_out_of_memory) throw std::bad_alloc();
}

// Calls a function, and returns what it throws as a status.
template <typename F>
OrtStatus* guarded(const OrtApi& api, F function) {
  try {
    function();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const std::exception& error) {
    return api.status(ORT_FAIL, error.what());
  }
}

std::string program_of(const OrtApi& api, const OrtKernelInfo* info) {
  size_t size = 0;
  demand(api.text(info, "program", nullptr, &size));
  std::string program(size, '\0');
  demand(api.text(info, "program", program.data(), &size));
  return program.c_str();  // without the zero at its end
}

Operator make_operator(ElementType type, int number) {
  Operator op{};
  op.version = CUSTOM_OP_VERSION;
  op.type = type;
  op.name = "Fused" + std::to_string(number);
  op.GetName = [](const OrtCustomOp* self) { return static_cast<const Operator*>(self)->name.c_str(); };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetOutputTypeCount = op.GetInputTypeCount;
  op.GetInputType = [](const OrtCustomOp* self, size_t) { return static_cast<const Operator*>(self)->type; };
  op.GetOutputType = op.GetInputType;
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return VARIADIC; };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return REQUIRED; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicInputMinArity;
  op.GetVariadicOutputMinArity = op.GetVariadicInputMinArity;
  op.GetVariadicOutputHomogeneity = op.GetVariadicInputMinArity;
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op.CreateKernelV2 = [](const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
    return guarded(*api, [&] {
      auto made = std::make_unique<Kernel>();
      made->api = api;
      made->type = static_cast<const Operator*>(self)->type;
      made->program = program_of(*api, info);
      *kernel = made.release();
    });
  };
  op.KernelComputeV2 = [](void* given, OrtKernelContext* context) {
    Kernel& kernel = *static_cast<Kernel*>(given);
    return guarded(*kernel.api, [&] {
      kernel.type == FLOAT ? run<float>(kernel, context) : run<double>(kernel, context);
    });
  };
  return op;
}

std::vector<Operator> make_operators() {
  std::vector<Operator> operators;
  for (int number = 0; number < MOST_CHAINS; ++number) {
    for (ElementType type : {FLOAT, DOUBLE}) operators.push_back(make_operator(type, number));
  }
  return operators;
}

#include "tables_operator.h"

// Returns the domain with the operators, one for each ONNX Runtime in this process: sessions share it.
OrtCustomOpDomain* domain_of(const OrtApi& api) {
  static const std::vector<Operator> operators = make_operators();
  static const std::vector<TablesOperator> tables_operators = make_tables_operators();
  static std::mutex mutex;
  static std::map<const OrtApi*, OrtCustomOpDomain*> domains;
  std::lock_guard<std::mutex> lock(mutex);
  OrtCustomOpDomain*& domain = domains[&api];
  if (!domain) {
    OrtCustomOpDomain* made;
    demand(api.create_domain("rationale", &made));
    for (const Operator& each : operators) demand(api.add_operator(made, &each));
    for (const TablesOperator& each : tables_operators) demand(api.add_operator(made, &each));
    domain = made;
  }
  return domain;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                              const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(API_VERSION);
  if (!api) return base->GetApi(1)->status(ORT_FAIL, "rationale-kernels needs ONNX Runtime 1.17 or newer");
  return guarded(*api, [&] { demand(api->add_domain(options, domain_of(*api))); });
}
