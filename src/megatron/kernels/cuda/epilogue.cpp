#include "megatron/kernels/cuda/epilogue.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <type_traits>

#include "megatron/base/error.h"
#include "megatron/kernels/cuda/epilogue_choice.h"
#include "megatron/kernels/cuda/launch.h"
#include "megatron/kernels/phases/operators/elementwise.h"

namespace megatron::kernels::cuda {
namespace {

using Apart = phases::ElementwiseOperators<DeviceDriver>;

/// The library that libtorch_cuda has loaded: the plugin itself is linked to none.
#define OF_CUBLASLT(name) decltype(&::name) name = reinterpret_cast<decltype(&::name)>(dlsym(RTLD_DEFAULT, #name))
struct CublasLt {
  OF_CUBLASLT(cublasLtMatmul);
  OF_CUBLASLT(cublasLtMatmulAlgoGetHeuristic);
  OF_CUBLASLT(cublasLtMatmulDescCreate);
  OF_CUBLASLT(cublasLtMatmulDescDestroy);
  OF_CUBLASLT(cublasLtMatmulDescSetAttribute);
  OF_CUBLASLT(cublasLtMatmulPreferenceCreate);
  OF_CUBLASLT(cublasLtMatmulPreferenceDestroy);
  OF_CUBLASLT(cublasLtMatmulPreferenceSetAttribute);
  OF_CUBLASLT(cublasLtMatrixLayoutCreate);
  OF_CUBLASLT(cublasLtMatrixLayoutDestroy);

  bool there() const {
    return cublasLtMatmul && cublasLtMatmulAlgoGetHeuristic && cublasLtMatmulDescCreate && cublasLtMatmulDescDestroy &&
           cublasLtMatmulDescSetAttribute && cublasLtMatmulPreferenceCreate && cublasLtMatmulPreferenceDestroy &&
           cublasLtMatmulPreferenceSetAttribute && cublasLtMatrixLayoutCreate && cublasLtMatrixLayoutDestroy;
  }
};
#undef OF_CUBLASLT
const CublasLt& library() {
  static const CublasLt found;
  return found;
}

template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

/// A row-major [rows, columns], which is a column-major one transposed. Null where cuBLASLt refuses it.
Owned<cublasLtMatrixLayout_t> layout_of(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  library().cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(columns),
                                       static_cast<std::uint64_t>(rows), columns);
  return {layout, library().cublasLtMatrixLayoutDestroy};
}
cudaDataType_t type_of(const EpilogueShape& shape) { return shape.bfloat16 ? CUDA_R_16BF : CUDA_R_16F; }

/// One product. cuBLASLt's matrices are column-major, so that ours are transposed there: forward y^T [f, rows] = w x^T
/// with w [f, other], which it has to transpose back; backward du^T [f, rows] = w^T dz^T with w [other, f]. `u` is
/// written forward and read backward.
class Product {
 public:
  Product(const EpilogueShape& shape, const at::Tensor& w, const void* bias, const at::Tensor& u)
      : w_(layout_of(type_of(shape), w.size(0), w.size(1))),
        x_(layout_of(type_of(shape), shape.rows, shape.other)),
        y_(layout_of(type_of(shape), shape.rows, shape.f)),
        product_(describe()) {
    if (!product_) return;
    set(CUBLASLT_MATMUL_DESC_TRANSA, shape.backward ? CUBLAS_OP_N : CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, shape.backward ? CUBLASLT_EPILOGUE_DGELU
                                       : shape.bias   ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                                      : CUBLASLT_EPILOGUE_GELU_AUX);
    if (shape.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<const void*>(u.const_data_ptr()));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.f);
  }

  /// The gradient of a weight [f, other], transposed x^T dy, in float32, with dy's sums in `bias`, [f] float32.
  /// Operands of run() are x, dy and the gradient.
  Product(const EpilogueShape& shape, const void* bias)
      : w_(layout_of(type_of(shape), shape.rows, shape.other)),
        x_(layout_of(type_of(shape), shape.rows, shape.f)),
        y_(layout_of(CUDA_R_32F, shape.f, shape.other)),
        product_(describe()) {
    if (!product_) return;
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
  }

  /// None where cuBLASLt has no kernel. Sums of parts are float32, as everywhere (parallel/cuda.h).
  std::optional<cublasLtMatmulAlgo_t> algorithm() const {
    if (!is_valid()) return std::nullopt;
    cublasLtMatmulPreference_t made = nullptr;
    library().cublasLtMatmulPreferenceCreate(&made);
    const Owned<cublasLtMatmulPreference_t> preference(made, library().cublasLtMatmulPreferenceDestroy);
    if (!preference) return std::nullopt;
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      library().cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{at::cuda::getCUDABlasLtWorkspaceSize()});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(operand, std::uint32_t{16});
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status =
        library().cublasLtMatmulAlgoGetHeuristic(at::cuda::getCurrentCUDABlasLtHandle(), product_.get(), w_.get(),
                                                 x_.get(), y_.get(), y_.get(), preference.get(), 1, &result, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    return result.algo;
  }

  /// y is overwritten or, with beta 1, added to.
  cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm, const at::Tensor& w, const at::Tensor& x,
                     const at::Tensor& y, float beta = 0) const {
    const float one = 1;
    return library().cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), product_.get(), &one, w.const_data_ptr(),
                                    w_.get(), x.const_data_ptr(), x_.get(), &beta, y.const_data_ptr(), y_.get(),
                                    y.data_ptr(), y_.get(), &algorithm, at::cuda::getCUDABlasLtWorkspace(),
                                    at::cuda::getCUDABlasLtWorkspaceSize(), at::cuda::getCurrentCUDAStream().stream());
  }

 private:
  static Owned<cublasLtMatmulDesc_t> describe() {
    cublasLtMatmulDesc_t product = nullptr;
    library().cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    return {product, library().cublasLtMatmulDescDestroy};
  }
  bool is_valid() const { return product_ && w_ && x_ && y_; }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    library().cublasLtMatmulDescSetAttribute(product_.get(), attribute, &value, sizeof value);
  }

  Owned<cublasLtMatrixLayout_t> w_, x_, y_;
  Owned<cublasLtMatmulDesc_t> product_;
};

/// Algorithms of the shapes that there were; none: cuBLASLt has no kernel for it.
class Algorithms {
 public:
  std::optional<cublasLtMatmulAlgo_t> of(const EpilogueShape& shape, const Product& product) {
    const std::scoped_lock lock(mutex_);
    const auto found = known_.find(shape);
    if (found == known_.end() && known_.size() >= kMostShapes) known_.clear();  // prompts of ever other lengths
    return found != known_.end() ? found->second : known_.emplace(shape, product.algorithm()).first->second;
  }
  void forget(const EpilogueShape& shape) {
    const std::scoped_lock lock(mutex_);
    known_[shape] = std::nullopt;
  }

 private:
  static constexpr std::size_t kMostShapes = 4096;
  std::mutex mutex_;
  std::map<EpilogueShape, std::optional<cublasLtMatmulAlgo_t>> known_;
};

/// Whether y was written, by a kernel of cuBLASLt: Product::run().
bool compute(const EpilogueShape& shape, const Product& product, const at::Tensor& w, const at::Tensor& x,
             const at::Tensor& y, float beta = 0) {
  static Algorithms algorithms;
  const auto algorithm = algorithms.of(shape, product);
  if (!algorithm) return false;
  const cublasStatus_t status = product.run(*algorithm, w, x, y, beta);
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
    throw std::runtime_error(concat("cuBLASLt could not compute a product: status ", static_cast<int>(status)));
  algorithms.forget(shape);
  return false;
}

bool in_line(const at::Tensor& x) {
  return x.is_contiguous() && reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

/// `inner`: features of w that x's meet.
bool computes(const at::Tensor& x, const at::Tensor& w, Activation form, bool gated, std::int64_t f,
              std::int64_t inner) {
  return library().there() && x.numel() > 0 && x.size(-1) == inner &&
         epilogue_computes({.capability = at::cuda::getCurrentDeviceProperties()->major,
                            .sixteen_bits = x.scalar_type() == w.scalar_type() &&
                                            (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf),
                            .tanh_gelu = form == Activation(Activation::GeluTanh) && !gated,
                            .aligned = in_line(x) && in_line(w),
                            .rows = x.numel() / x.size(-1),
                            .f = f,
                            .other = x.size(-1)});
}

EpilogueShape shape_of(const at::Tensor& x, std::int64_t f, bool backward, const at::Tensor& bias,
                       const at::Tensor& u) {
  return {.device = x.device().index(),
          .backward = backward,
          .bfloat16 = x.scalar_type() == at::kBFloat16,
          .bias = bias.defined(),
          .rows = x.numel() / x.size(-1),
          .f = f,
          .other = x.size(-1),
          .alignment = std::min(alignment_of(u.const_data_ptr()),
                                alignment_of(bias.defined() ? bias.const_data_ptr() : nullptr))};
}

}  // namespace

ActivatedOutput linear_activation(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, Activation form,
                                  bool gated, PackedWeight* packed) {
  const std::int64_t f = w.size(0);
  const bool bias_fits = !bias.defined() || (bias.scalar_type() == x.scalar_type() && in_line(bias));
  if (bias_fits && computes(x, w, form, gated, f, w.size(1))) {
    auto sizes = x.sizes().vec();
    sizes.back() = f;
    ActivatedOutput out{at::empty(sizes, x.options()), at::empty(sizes, x.options())};
    const EpilogueShape shape = shape_of(x, f, /*backward=*/false, bias, out.u);
    if (compute(shape, {shape, w, bias.defined() ? bias.const_data_ptr() : nullptr, out.u}, w, x, out.y)) return out;
  }
  return Apart::linear_activation(x, w, bias, form, gated, packed);
}

ActivatedOutput linear_activation_gradient(const at::Tensor& dz, const at::Tensor& w, const at::Tensor& u,
                                           Activation form, bool gated, bool again, PackedWeight* packed) {
  const std::int64_t f = w.size(1);
  if (u.scalar_type() == dz.scalar_type() && in_line(u) && computes(dz, w, form, gated, f, w.size(0))) {
    ActivatedOutput out{at::empty_like(u), {}};
    const EpilogueShape shape = shape_of(dz, f, /*backward=*/true, {}, u);
    if (compute(shape, {shape, w, nullptr, u}, w, dz, out.u)) {
      if (again) out.y = Apart::activation(u, form);
      return out;
    }
  }
  return Apart::linear_activation_gradient(dz, w, u, form, gated, again, packed);
}

bool linear_gradients(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta,
                      const at::Tensor& grad_bias, double bias_beta) {
  const std::int64_t n = grad_w.size(0), k = grad_w.size(1);
  const bool sixteen_bits =
      x.scalar_type() == dy.scalar_type() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
  if (!library().there() || dy.numel() == 0 || grad_w.scalar_type() != at::kFloat || !in_line(grad_w) ||
      !gradients_computed({.capability = at::cuda::getCurrentDeviceProperties()->major,
                           .sixteen_bits = sixteen_bits,
                           .tanh_gelu = false,
                           .aligned = in_line(dy) && in_line(x),
                           .rows = dy.numel() / n,
                           .f = n,
                           .other = k}))
    return false;
  const at::Tensor sums = at::empty({n}, grad_w.options());
  const EpilogueShape shape{.device = x.device().index(),
                            .bfloat16 = x.scalar_type() == at::kBFloat16,
                            .gradients = true,
                            .rows = dy.numel() / n,
                            .f = n,
                            .other = k};
  if (!compute(shape, {shape, sums.const_data_ptr()}, x, dy, grad_w, static_cast<float>(beta))) return false;
  if (bias_beta == 0)
    grad_bias.copy_(sums);
  else
    grad_bias.add_(sums);
  return true;
}

}  // namespace megatron::kernels::cuda
