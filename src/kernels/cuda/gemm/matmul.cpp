#include "kernels/cuda/gemm/matmul.hpp"

#include <array>
#include <bit>

#include "core/error.hpp"
#include "core/system/process.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {

CublasLt::CublasLt()
    : library_({fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR),
                fmt::format("/usr/local/cuda/lib64/libcublasLt.so.{}", CUBLAS_VER_MAJOR)},
               fmt::format("run.device = cuda needs cuBLAS {} of the CUDA toolkit; add its folder "
                           "to LD_LIBRARY_PATH",
                           CUBLAS_VER_MAJOR)) {
  TRIREME_CUBLASLT(*this, Create(&handle));
}

CublasLt::~CublasLt() { Destroy(handle); }

void CublasLt::check(cublasStatus_t status, const char* call, const char* file, int line) const {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw InternalError("{}:{}: {} failed on {}: {} ({})", file, line, call, process_identity(),
                      GetStatusString(status), GetStatusName(status));
}

namespace {

static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

constexpr int kCandidates = 24;

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::f32:
      return CUDA_R_32F;
    case DType::f64:
      return CUDA_R_64F;
    case DType::float8_e4m3:
      return CUDA_R_8F_E4M3;
    case DType::float8_e5m2:
      return CUDA_R_8F_E5M2;
  }
  throw_unknown_dtype(dtype);
}

// GELU is that of a linear layer, which has a bias. Our A is cuBLASLt's B.
cublasLtEpilogue_t epilogue_of(const GemmProblem& problem) {
  switch (problem.epilogue) {
    case Epilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::bias_gradient:
      return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::exact_gelu:  // which it lacks: candidates() has none
    case Epilogue::exact_gelu_gradient:
    case Epilogue::gated:
    case Epilogue::gated_gradient:
    case Epilogue::none:
      break;
  }
  return problem.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// How cuBLASLt of CUDA 12.9 or newer is told what has a scale; older headers have no names for it.
constexpr std::size_t kBlockScales = 120900;  ///< the library's version
constexpr auto kScaleModeA = static_cast<cublasLtMatmulDescAttributes_t>(31);
constexpr auto kScaleModeB = static_cast<cublasLtMatmulDescAttributes_t>(32);

std::int32_t scale_mode(ScaleBlocks blocks) {
  switch (blocks) {
    case ScaleBlocks::vectors:
      return 4;
    case ScaleBlocks::squares:
      return 5;
    case ScaleBlocks::tensor:
      break;
  }
  return 0;
}

bool has(Epilogue epilogue) {
  return epilogue != Epilogue::exact_gelu && epilogue != Epilogue::exact_gelu_gradient &&
         epilogue != Epilogue::gated && epilogue != Epilogue::gated_gradient;
}

/// Where the epilogue is told of its other operand.
cublasLtMatmulDescAttributes_t aux_pointer(Epilogue epilogue) {
  return epilogue == Epilogue::bias_gradient ? CUBLASLT_MATMUL_DESC_BIAS_POINTER
                                             : CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
}

GemmProblem fp8_problem(const Gemm& args) {
  check_fp8_gemm(args);
  const auto [m, k] = extents_of("gemm", "a", args.a);
  return {.m = m,
          .n = extents_of("gemm", "b", args.b).rows,
          .k = k,
          .transpose_b = true,
          .operands = args.a.dtype,
          .result = args.c.dtype,
          .adds = args.beta != 0.0,
          .bias = static_cast<bool>(args.bias),
          .alignment_a = alignment_of(args.a.data),
          .alignment_b = alignment_of(args.b.data),
          .alignment_c = alignment_of(args.c.data),
          .operands_b = args.b.dtype,
          .fast_accumulation = args.fast_accumulation,
          .blocks_a = args.blocks_a,
          .blocks_b = args.blocks_b};
}

}  // namespace

GemmProblem problem_of(const Gemm& args) {
  if (is_fp8(args.a.dtype)) return fp8_problem(args);
  const DType dtype = args.a.dtype;
  const auto [m, n] = extents_of("gemm", "c", args.c);
  const Extents a = extents_of("gemm", "a", args.a);
  const std::int64_t k = args.transpose_a ? a.rows : a.columns;
  TRIREME_CHECK(dtype != DType::f64, "gemm: CUDA kernels do not compute in fp64");
  const DType result = args.c.dtype == accumulation_type(dtype) ? accumulation_type(dtype) : dtype;
  check_matrix("gemm", "a", args.a, dtype, args.transpose_a ? Extents{k, m} : Extents{m, k});
  check_matrix("gemm", "b", args.b, dtype, args.transpose_b ? Extents{n, k} : Extents{k, n});
  check_matrix("gemm", "c", args.c, result, {m, n});
  if (args.bias) {
    check_vector("gemm", "bias", args.bias, dtype, n);
    TRIREME_CHECK(args.beta == 0.0, "gemm: a bias is added with beta 0 only");
    TRIREME_CHECK(result == dtype, "gemm: a bias of {} cannot be added to a result of {}",
                  name_of(dtype), name_of(result));
  }
  return {.m = m,
          .n = n,
          .k = k,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .operands = dtype,
          .result = result,
          .adds = args.beta != 0.0,
          .bias = static_cast<bool>(args.bias),
          .alignment_a = alignment_of(args.a.data),
          .alignment_b = alignment_of(args.b.data),
          .alignment_c = alignment_of(args.c.data)};
}

Operands operands_of(const Gemm& args) {
  return {.a = args.a.data,
          .b = args.b.data,
          .c = args.c.data,
          .bias = args.bias.data,
          .beta = static_cast<float>(args.beta),
          .scale_a = args.a.scale,
          .scale_b = args.b.scale,
          .arrivals = args.arrivals};
}

namespace {

DType type_of_b(const GemmProblem& problem) {
  return is_fp8(problem.operands) ? problem.operands_b : problem.operands;
}

}  // namespace

Matmul::Matmul(const CublasLt& library, const GemmProblem& problem)
    : library_(library),
      problem_(problem),
      description_(nullptr, library.MatmulDescDestroy),
      first_(problem.transpose_b ? layout(type_of_b(problem), problem.k, problem.n)
                                 : layout(type_of_b(problem), problem.n, problem.k)),
      second_(problem.transpose_a ? layout(problem.operands, problem.m, problem.k)
                                  : layout(problem.operands, problem.k, problem.m)),
      result_(layout(problem.result, problem.n, problem.m)) {
  // Sums in fp32, and fp32 operands as they are: never rounded to TF32.
  cublasLtMatmulDesc_t description = nullptr;
  TRIREME_CUBLASLT(library_, MatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  description_.reset(description);
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  describe(CUBLASLT_MATMUL_DESC_TRANSA, operation(problem.transpose_b));
  describe(CUBLASLT_MATMUL_DESC_TRANSB, operation(problem.transpose_a));
  describe(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(problem));
  // Until run() sets them, pointers tell the alignment alone; nothing follows them.
  const auto* const aligned = reinterpret_cast<const void*>(kLargestAlignment);
  if (problem.bias) {
    describe(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
             cuda_type(is_fp8(problem.operands) ? problem.result : problem.operands));
    describe(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned);
  }
  if (is_fp8(problem.operands)) {
    describe(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, aligned);
    describe(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, aligned);
    describe(CUBLASLT_MATMUL_DESC_FAST_ACCUM,
             static_cast<std::int8_t>(problem.fast_accumulation ? 1 : 0));
    if (problem.blocks_a != ScaleBlocks::tensor) {
      if (library_.GetVersion() < kBlockScales)
        throw DeckError("precision.fp8.recipe = block needs cuBLASLt of CUDA 12.9 or newer, not {}",
                        library_.GetVersion());
      describe(kScaleModeA, scale_mode(problem.blocks_b));
      describe(kScaleModeB, scale_mode(problem.blocks_a));
    }
  }
  if (problem.epilogue == Epilogue::bias_gradient)
    describe(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(DType::f32));
  else if (problem.epilogue != Epilogue::none)
    describe(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.n);
  if (problem.epilogue != Epilogue::none) describe(aux_pointer(problem.epilogue), aligned);
}

Matmul::Layout Matmul::layout(DType dtype, std::int64_t rows, std::int64_t columns) const {
  cublasLtMatrixLayout_t created = nullptr;
  TRIREME_CUBLASLT(library_, MatrixLayoutCreate(&created, cuda_type(dtype), rows, columns, rows));
  return Layout(created, library_.MatrixLayoutDestroy);
}

template <typename Value>
void Matmul::describe(cublasLtMatmulDescAttributes_t attribute, const Value& value) const {
  TRIREME_CUBLASLT(library_,
                   MatmulDescSetAttribute(description_.get(), attribute, &value, sizeof(value)));
}

std::vector<Algorithm> Matmul::candidates() const {
  if (!has(problem_.epilogue)) return {};
  cublasLtMatmulPreference_t created = nullptr;
  TRIREME_CUBLASLT(library_, MatmulPreferenceCreate(&created));
  const Owned<cublasLtMatmulPreferenceOpaque_t> preference(created,
                                                           library_.MatmulPreferenceDestroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    TRIREME_CUBLASLT(
        library_, MatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kGemmWorkspace});
  // Sums over parts of k may be added up in fp32 by a step of its own. In place, no order of them
  // is promised; in the type of the result, they are rounded too often.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{problem_.alignment_b});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{problem_.alignment_a});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{problem_.alignment_c});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t{problem_.alignment_c});

  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
  int found = 0;
  const cublasStatus_t status = library_.MatmulAlgoGetHeuristic(
      library_.handle, description_.get(), first_.get(), second_.get(), result_.get(),
      result_.get(), preference.get(), kCandidates, results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  library_.check(status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__);
  std::vector<Algorithm> candidates;
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS && deterministic(results[i]))
      candidates.push_back(std::bit_cast<Algorithm>(results[i].algo));
  return candidates;
}

bool Matmul::deterministic(const cublasLtMatmulHeuristicResult_t& result) const {
  std::uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
  std::size_t written = 0;
  const cublasStatus_t status = library_.MatmulAlgoConfigGetAttribute(
      &result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme), &written);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kGemmWorkspace &&
         (scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
          scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

bool Matmul::usable(const Algorithm& algorithm) const {
  if (!has(problem_.epilogue)) return false;
  cublasLtMatmulHeuristicResult_t result{};
  result.algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  const cublasStatus_t status =
      library_.MatmulAlgoCheck(library_.handle, description_.get(), first_.get(), second_.get(),
                               result_.get(), result_.get(), &result.algo, &result);
  return status == CUBLAS_STATUS_SUCCESS && deterministic(result);
}

cublasStatus_t Matmul::run(const Algorithm& algorithm, const Operands& operands,
                           const Context& context) const {
  if (problem_.bias) describe(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  if (problem_.epilogue != Epilogue::none) describe(aux_pointer(problem_.epilogue), operands.aux);
  if (is_fp8(problem_.operands)) {
    describe(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.scale_b);
    describe(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.scale_a);
  }
  const auto algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  const float one = 1.0f;
  return library_.Matmul(library_.handle, description_.get(), &one, operands.b, first_.get(),
                         operands.a, second_.get(), &operands.beta, operands.c, result_.get(),
                         operands.c, result_.get(), &algo, context.workspace, kGemmWorkspace,
                         context.stream);
}

}  // namespace trireme::kernels::cuda
