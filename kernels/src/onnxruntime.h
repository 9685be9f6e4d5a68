// The part of ONNX Runtime's C API that a library of operators needs.
//
// ONNX Runtime publishes no package of its headers for Python or Debian 12. Its C interface is stable: functions are
// only ever added to the end of OrtApi, and fields to the end of OrtCustomOp, which `version` says. So the few that are
// called here are declared by their places. onnxruntime_c_api.h (MIT, https://github.com/microsoft/onnxruntime)
// documents each by its name.
#pragma once

#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtCustomOpDomain;
struct OrtSessionOptions;

enum OrtErrorCode { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };
enum ElementType { ANY = 0, FLOAT = 1, DOUBLE = 11 };
enum Characteristic { REQUIRED = 0, VARIADIC = 2 };

constexpr uint32_t API_VERSION = 17;        // of ONNX Runtime 1.17, the first with KernelContext_ParallelFor's siblings
constexpr uint32_t CUSTOM_OP_VERSION = 16;  // the first with CreateKernelV2 and KernelComputeV2

struct OrtApi {
  void* functions[275];

  template <typename Result = OrtStatus*, typename... Arguments>
  Result call(size_t place, Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(functions[place])(arguments...);
  }

  OrtStatus* status(OrtErrorCode code, const char* message) const { return call(0, code, message); }
  OrtStatus* create_domain(const char* name, OrtCustomOpDomain** domain) const { return call(26, name, domain); }
  OrtStatus* add_operator(OrtCustomOpDomain* domain, const struct OrtCustomOp* op) const { return call(27, domain, op); }
  OrtStatus* add_domain(OrtSessionOptions* options, OrtCustomOpDomain* domain) const { return call(28, options, domain); }
  OrtStatus* data(OrtValue* value, void** data) const { return call(51, value, data); }
  OrtStatus* rank(const OrtTensorTypeAndShapeInfo* info, size_t* rank) const { return call(61, info, rank); }
  OrtStatus* dims(const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t rank) const {
    return call(62, info, dims, rank);
  }
  OrtStatus* shape(const OrtValue* value, OrtTensorTypeAndShapeInfo** info) const { return call(65, value, info); }
  OrtStatus* text(const OrtKernelInfo* info, const char* name, char* text, size_t* size) const {
    return call(87, info, name, text, size);
  }
  OrtStatus* input_count(const OrtKernelContext* context, size_t* count) const { return call(88, context, count); }
  OrtStatus* input(const OrtKernelContext* context, size_t i, const OrtValue** value) const {
    return call(90, context, i, value);
  }
  OrtStatus* output(OrtKernelContext* context, size_t i, const int64_t* dims, size_t rank, OrtValue** value) const {
    return call(91, context, i, dims, rank, value);
  }
  void release(OrtTensorTypeAndShapeInfo* info) const { call<void>(99, info); }
  // calls function(data, i) for i in 0 … count − 1 in the session's own threads
  OrtStatus* parallel_for(const OrtKernelContext* context, void (*function)(void*, size_t), size_t count,
                          void* data) const {
    return call(274, context, function, count, size_t{0}, data);
  }
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ElementType (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ElementType (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  Characteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  Characteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
};
