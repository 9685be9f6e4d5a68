// The operators rationale:Tables0, Tables1 and so on: numbers that a row of features looks up, and their sums. Included in
// library.cpp's namespace.
//
// Inputs: x [N, features]; the numbers of all tables [M]; integers, from which only the function of this name reads N.
// Output: the sums [N, columns].

constexpr int MOST_TABLES = 8;         // different ones of a file; lookups.py makes no more
constexpr int64_t MOST_ROWS = 512;      // of a block: a table read from memory serves all of them
constexpr int64_t MOST_SUMS = 1 << 18;  // of a block: about a core's cache

struct TablesOperator : OrtCustomOp {
  ElementType x, numbers;
  std::string name;
};

struct TablesKernel {
  const OrtApi* api;
  ElementType x, numbers;
  Tables tables;
};

template <typename T>
Lookup<T> fastest_lookup() {
#ifdef HAVE_V3
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return v3::look_up<T>;
#endif
  return plain::look_up<T>;
}

// Returns the rows of a block: enough for each core, and few enough for its cache.
int64_t block_rows(const Tables& tables, int64_t rows) {
  static const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  auto round_up = [](int64_t count) { return (count + LANES - 1) / LANES * LANES; };
  const int64_t fitting = std::clamp(MOST_SUMS / static_cast<int64_t>(tables.sums), LANES, MOST_ROWS);
  const int64_t worthwhile = static_cast<int64_t>(TASK_NANOSECONDS / (tables.cost + 1));
  return round_up(std::min(fitting, std::max((rows + cores - 1) / cores, worthwhile)));
}

template <typename T>
void run(TablesKernel& kernel, OrtKernelContext* context) {
  const OrtApi& api = *kernel.api;
  const Tables& tables = kernel.tables;
  const Input x = read_input(api, context, 0), numbers = read_input(api, context, 1);
  if (x.dims.size() != 2 || x.dims[1] < tables.features)
    throw std::invalid_argument("rationale:Tables: x is not [N, " + std::to_string(tables.features) + " or more features]");
  if (numbers.dims.size() != 1 || numbers.dims[0] < tables.numbers)
    throw std::invalid_argument("rationale:Tables: there are fewer than " + std::to_string(tables.numbers) + " numbers");
  const int64_t rows = x.dims[0], dims[2] = {rows, static_cast<int64_t>(tables.sums)};
  OrtValue* value;
  demand(api.output(context, 0, dims, 2, &value));
  if (!rows) return;
  TablesCall call{&tables, x.data, numbers.data, kernel.x == DOUBLE, x.dims[1], nullptr};
  demand(api.data(value, &call.output));
  static const Lookup<T> look_up = fastest_lookup<T>();
  const int64_t block = block_rows(tables, rows), blocks = (rows + block - 1) / block;
  if (blocks == 1) return look_up(call, 0, rows);
  struct Work {
    const TablesCall& call;
    int64_t rows, block;
    std::atomic<bool> is_out_of_memory{false};
  } work{call, rows, block};
  demand(api.parallel_for(
      context,
      [](void* data, size_t i) {
        Work& work = *static_cast<Work*>(data);
        const int64_t begin = static_cast<int64_t>(i) * work.block;
        try {
          look_up(work.call, begin, std::min(begin + work.block, work.rows));
        } catch (const std::bad_alloc&) {  // nothing may be thrown through ONNX Runtime's threads
          work.is_out_of_memory = true;
        }
      },
      static_cast<size_t>(blocks), &work));
  if (work.is_out_of_memory) throw std::bad_alloc();
}

TablesOperator make_tables_operator(ElementType x, ElementType numbers, int number) {
  TablesOperator op{};
  op.version = CUSTOM_OP_VERSION;
  op.x = x;
  op.numbers = numbers;
  op.name = "Tables" + std::to_string(number);
  op.GetName = [](const OrtCustomOp* self) { return static_cast<const TablesOperator*>(self)->name.c_str(); };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{3}; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetInputType = [](const OrtCustomOp* self, size_t i) {
    const auto& op = *static_cast<const TablesOperator*>(self);
    return i == 0 ? op.x : i == 1 ? op.numbers : ANY;
  };
  op.GetOutputType = [](const OrtCustomOp* self, size_t) { return static_cast<const TablesOperator*>(self)->numbers; };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return REQUIRED; };
  op.GetOutputCharacteristic = op.GetInputCharacteristic;
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicInputMinArity;
  op.GetVariadicOutputMinArity = op.GetVariadicInputMinArity;
  op.GetVariadicOutputHomogeneity = op.GetVariadicInputMinArity;
  op.KernelDestroy = [](void* kernel) { delete static_cast<TablesKernel*>(kernel); };
  op.CreateKernelV2 = [](const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
    return guarded(*api, [&] {
      const auto& op = *static_cast<const TablesOperator*>(self);
      *kernel = new TablesKernel{api, op.x, op.numbers, parse_tables(program_of(*api, info))};
    });
  };
  op.KernelComputeV2 = [](void* given, OrtKernelContext* context) {
    TablesKernel& kernel = *static_cast<TablesKernel*>(given);
    return guarded(*kernel.api, [&] {
      kernel.numbers == FLOAT ? run<float>(kernel, context) : run<double>(kernel, context);
    });
  };
  return op;
}

std::vector<TablesOperator> make_tables_operators() {
  std::vector<TablesOperator> operators;
  for (int number = 0; number < MOST_TABLES; ++number)
    for (ElementType x : {FLOAT, DOUBLE})
      for (ElementType numbers : {FLOAT, DOUBLE}) operators.push_back(make_tables_operator(x, numbers, number));
  return operators;
}
