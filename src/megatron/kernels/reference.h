#pragma once
#include "megatron/kernels/activation.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/embedding.h"
#include "megatron/kernels/normalization.h"
#include "megatron/kernels/optimizer.h"
#include "megatron/kernels/rope.h"

// The plain composition of ATen operations that defines each kernel: any floating dtype (float64 at full precision),
// any device. The public functions fall back to these; the tests hold the fast paths against them. Same contracts as
// the functions of the same name one namespace up.
namespace megatron::kernels::reference {

at::Tensor bias_activation(at::Tensor x, const at::Tensor& bias, Activation form);
at::Tensor activation_backward(at::Tensor dy, const at::Tensor& u, Activation form);
at::Tensor activation(const at::Tensor& u, Activation form);
at::Tensor bias_gated_activation(at::Tensor x, const at::Tensor& bias, Activation form);
at::Tensor gated_activation_backward(const at::Tensor& dy, const at::Tensor& u, Activation form);
at::Tensor gated_activation(const at::Tensor& u, Activation form);

AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options);
void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias = {});

void rotate_(const at::Tensor& heads, const RopeTable& table, const at::Tensor& position_ids,
             std::int64_t first_position, bool inverse);

SoftmaxPieces softmax_pieces(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             bool smoothing);
void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                             const at::Tensor& logsumexp, const at::Tensor& scale, double label_smoothing);

/// random_word(key, sample, index) as int64 in [0, 2^32); `sample` and `index` int64, broadcast against each other.
at::Tensor random_words(std::uint64_t key, const at::Tensor& sample, const at::Tensor& index);
at::Tensor dropout_mask(const Dropout& dropout, std::int64_t s, std::int64_t b, std::int64_t h, at::ScalarType dtype,
                        at::Device device);
at::Tensor attention_dropout_mask(const Dropout& dropout, std::int64_t b, std::int64_t n, std::int64_t head_offset,
                                  std::int64_t queries, std::int64_t keys, at::ScalarType dtype, at::Device device);

at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t begin);
void embedding_backward(const at::Tensor& grad_weight, const at::Tensor& tokens, const at::Tensor& dy,
                        std::int64_t begin);

NormOutput layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);
at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                               const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& grad_weight,
                               const at::Tensor& grad_bias, double beta, const at::Tensor& residual_gradient);
at::Tensor bias_dropout_add(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual, const Dropout& dropout);
at::Tensor dropout_backward(const at::Tensor& dy, const Dropout& dropout);
AddNormOutput bias_dropout_add_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                    const Dropout& dropout, const at::Tensor& weight, const at::Tensor& norm_bias,
                                    double eps);
NormOutput rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& grad_weight, double beta,
                             const at::Tensor& residual_gradient);
AddNormOutput bias_dropout_add_rms_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                        const Dropout& dropout, const at::Tensor& weight, double eps);
void accumulate_bias_gradient(const at::Tensor& grad_bias, const at::Tensor& dy, double beta);

void adam_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const Adam& adam, const Update& update);
void sgd_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& momentum_buffer,
          double momentum, const Update& update);
void lion_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const Lion& lion, const Update& update);
void round_(const at::Tensor& model, const at::Tensor& param, const Update& update);
double sum_of_squares(const at::Tensor& x);
double max_abs(const at::Tensor& x);

}  // namespace megatron::kernels::reference
