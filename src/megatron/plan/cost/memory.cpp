#include "megatron/plan/cost/memory.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>

#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/fit/teacher.h"
#include "megatron/plan/cost/layer_kinds.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/cost/recomputation.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/parameters/fp8.h"
#include "megatron/plan/pipeline_plan.h"

namespace megatron::plan {
namespace {

/// Width of the residual stream, and of what is as wide outside of the matrices, on this rank.
std::int64_t stream_width(const config::RunConfig& config, std::int64_t hidden) {
  return config.parallel.sp ? hidden / config.parallel.tp : hidden;
}

/// Tokens of a microbatch on one rank.
std::int64_t tokens_of(const config::RunConfig& config) {
  return config.train.micro_batch_size * config.data.seq_length / config.parallel.cp;
}

/// Tokens of a stack: a T5's have lengths of their own.
std::int64_t tokens_of(const config::RunConfig& config, bool decoder) {
  return decoder ? config.train.micro_batch_size * config.data.decoder_seq_length / config.parallel.cp
                 : tokens_of(config);
}

/// A stage's layers of one length: all, or those of one of a T5's stacks.
struct Stretch {
  std::int64_t first = 0, layers = 0;
  bool decoder = false;  ///< a T5's
};

std::vector<Stretch> stretches_of(const ModelShape& shape, const StageSpec& part) {
  if (!shape.encoder_decoder()) return {{part.first_layer, part.num_layers, false}};
  const std::int64_t end = part.first_layer + part.num_layers;
  const std::int64_t encoder = std::clamp(shape.encoder_layers, part.first_layer, end) - part.first_layer;
  return {{part.first_layer, encoder, false}, {part.first_layer + encoder, part.num_layers - encoder, true}};
}

std::vector<LayerGroup> autograd_groups(const config::TrainConfig& train, const ModelShape& shape,
                                        const StageSpec& part, bool partial) {
  return layer_groups(layer_recomputation(train, shape.num_layers), part, shape.encoder_layers, partial);
}

bool in_decoder(const ModelShape& shape, std::int64_t layer) {
  return shape.encoder_decoder() && layer >= shape.encoder_layers;
}

/// `partial`: of a microbatch that recomputes in part, which is no module.
bool recomputes(const config::RunConfig& config, const char* module, bool partial) {
  if (partial) return false;
  const std::vector<std::string>& modules = config.train.recompute_modules;
  return config.train.recompute == "selective" && std::find(modules.begin(), modules.end(), module) != modules.end();
}

/// What the embedding's forward and backward cost: of rows of the hidden width, forward reads two and writes one for
/// each token, backward reads its gradient, and reads and writes two.
struct EmbeddingOperations {
  double forward, backward;
};

EmbeddingOperations embedding_operations(const config::RunConfig& config, const ModelShape& shape) {
  // An assumption, so that rows that are only moved have a cost: a CPU core multiplies and adds about 16 times while it
  // moves a byte from memory (a Xeon of two cores: 471e9 operations and 31e9 bytes per second). A split does not change
  // unless layers and embedding cost nearly the same.
  constexpr double kOperationsOfByte = 16;
  const double row = kOperationsOfByte * static_cast<double>(tokens_of(config) * shape.hidden * element_bytes(config));
  return {.forward = 3 * row, .backward = 5 * row};
}

Recomputed recomputed_of(const config::RunConfig& config, bool partial) {
  return {.core_attention = recomputes(config, "core_attn", partial),
          .mlp = recomputes(config, "mlp", partial),
          .gelu = config.train.recompute_gelu};
}

/// Bytes of the norms that adapters with magnitudes keep of a pass over a layer, and for their own gradients too: a
/// number of each of this rank's outputs that are adapted.
std::int64_t row_norm_bytes(const config::RunConfig& config, const LayerSpec& layer) {
  const std::optional<Lora> lora = lora_of(config.lora);
  if (!lora || !lora->dora) return 0;
  std::int64_t outputs = 0;
  for (const Branch& branch : layer.branches)
    for (const Linear& linear : branch.linears(layer.hidden))
      for (const ProjectionSlice& part : projection_slices(layer, linear, config.parallel.tp))
        if (lora->adapts(part.name)) outputs += part.outputs();
  return outputs * std::max<std::int64_t>(element_bytes(config), 4);
}

/// Bytes that a layer keeps between its two halves of backward: what its weight products multiply.
std::int64_t layer_weight_bytes(const config::RunConfig& config, const LayerSpec& layer, bool partial) {
  std::int64_t elements = 0, wide = 0, read = 0;  // read: of the stream
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    const Kept inputs = layer.branches[i].weight_inputs(config.parallel.tp, recomputed_of(config, partial));
    const std::int64_t rows = tokens_of(config, layer.decoder), width = stream_width(config, layer.hidden);
    read += layer.parallel && i > 0 ? 0 : rows * width;  // branches in parallel read the same
    elements += rows * (width + inputs.per_token) + tokens_of(config) * inputs.per_encoder_token;
    wide += tokens_of(config, layer.decoder) * inputs.wide_per_token;
  }
  return read * stream_element_bytes(config) + elements * element_bytes(config) +
         wide * std::max<std::int64_t>(element_bytes(config), 4) + row_norm_bytes(config, layer);
}

/// Of a stage with the output, what its depths of multi-token prediction keep: of each the embeddings and the states
/// that it reads with their statistics, its layer, its last norm's input, and the gradient of what the output takes.
/// Of one that is computed again not its layer nor statistics, and of the states this rank's part where parts are kept.
struct DepthBytes {
  std::int64_t kept = 0;   ///< of all depths
  std::int64_t again = 0;  ///< of one, while backward goes through it again
};

DepthBytes depth_bytes(const config::RunConfig& config, const ModelShape& shape, const StageSpec& part, bool partial) {
  if (!part.output || shape.mtp_depths == 0) return {};
  const LayerSpec layer = shape.prediction_depth(0).layer;
  const std::int64_t element = element_bytes(config), stream = tokens_of(config) * stream_width(config, shape.hidden),
                     rows = tokens_of(config) / (config.parallel.sp ? config.parallel.tp : 1);
  const std::int64_t inside = layer_activation_bytes(config, layer, partial) +
                              2 * layer.statistics() * rows * std::max<std::int64_t>(element, 4);
  const bool again = depths_again(layer_recomputation(config.train, shape.num_layers), partial),
             parts = config.train.distribute_saved_activations && config.parallel.tp > 1 && !config.parallel.sp;
  const std::int64_t states = again && parts ? stream / config.parallel.tp : stream;
  return {.kept = shape.mtp_depths * ((3 * stream + states) * element + (again ? 0 : inside)),
          .again = again ? inside : 0};
}

/// Bytes that depths keep between the halves of backward: what their products read, that of the projection two streams.
std::int64_t depth_weight_bytes(const config::RunConfig& config, const ModelShape& shape, bool partial) {
  const std::int64_t stream = tokens_of(config) * stream_width(config, shape.hidden) * element_bytes(config);
  return shape.mtp_depths * (layer_weight_bytes(config, shape.prediction_depth(0).layer, partial) + 2 * stream +
                             tokens_of(config) * shape.hidden / config.parallel.tp * element_bytes(config));
}

}  // namespace

std::vector<bool> layers_again(const config::TrainConfig& train, const ModelShape& shape, const StageSpec& part,
                               bool partial) {
  std::vector<bool> again;
  for (const LayerGroup& group : autograd_groups(train, shape, part, partial))
    again.insert(again.end(), static_cast<std::size_t>(group.last - group.first), group.again);
  return again;
}

std::int64_t layer_activation_bytes(const config::RunConfig& config, const LayerSpec& layer, bool partial) {
  const int split = config.parallel.sp ? config.parallel.tp : 1;
  const std::int64_t tokens = tokens_of(config, layer.decoder),
                     wide_bytes = std::max<std::int64_t>(element_bytes(config), 4);
  std::int64_t bytes = row_norm_bytes(config, layer);
  for (std::size_t i = 0; i < layer.branches.size(); ++i) {
    const Kept kept = layer.branches[i].kept(config.parallel.tp, layer.rms_norm, recomputed_of(config, partial));
    const std::int64_t streams = tokens * layer.streams_kept(i) * stream_width(config, layer.hidden),
                       given = tokens * (layer.norms.behind ? stream_width(config, layer.hidden) : 0);
    bytes += (given + tokens * kept.per_token + tokens_of(config) * kept.per_encoder_token) * element_bytes(config) +
             (streams - given) * stream_element_bytes(config);
    // Statistics of norms are one token's whether or not it is this rank's: with sp a rank has 1/t of the tokens.
    bytes += (tokens * kept.wide_per_token + tokens * layer.norm_statistics(i) / split) * wide_bytes;
  }
  return bytes;
}

std::int64_t stage_activation_bytes(const config::RunConfig& config, const ModelShape& shape, const StageSpec& part,
                                    bool partial) {
  const auto stream_of = [&](bool decoder) {
    return tokens_of(config, decoder) * stream_width(config, shape.hidden) * stream_element_bytes(config);
  };
  const bool parts = config.train.distribute_saved_activations && config.parallel.tp > 1 && !config.parallel.sp;
  std::int64_t bytes = 0;
  ByLayerKind<std::int64_t> kept(shape);
  bool begins_again = false;  // the first layer is recomputed
  for (const LayerGroup& group : autograd_groups(config.train, shape, part, partial)) {
    begins_again = begins_again || (group.again && group.first == 0);
    if (group.again) {
      const std::int64_t input = stream_of(in_decoder(shape, part.first_layer + group.first));
      bytes += parts ? input / config.parallel.tp : input;
      continue;
    }
    for (std::int64_t l = group.first; l < group.last; ++l)
      bytes += kept.of(part.first_layer + l,
                       [&](const LayerSpec& layer) { return layer_activation_bytes(config, layer, partial); });
  }
  for (const Stretch& stretch : stretches_of(shape, part))  // what cross attention reads, the same in each layer
    if (stretch.decoder && stretch.layers > 0) bytes += stream_of(false);
  // What ends the encoder is normalized, whose input is kept.
  if (begins_decoder(shape, part) && part.first_layer < shape.encoder_layers) bytes += stream_of(false);
  // The final norm's input, and the gradient of what the output layer takes, which it computes with the loss. A
  // BERT's head: the norm's output, and its own product before and after the activation.
  if (part.output)
    bytes += stream_of(shape.encoder_decoder()) + (shape.masked_lm_head && shape.predicts_tokens() ? 4 : 1) *
                                                      tokens_of(config, shape.encoder_decoder()) *
                                                      stream_width(config, shape.hidden) * element_bytes(config);
  bytes += depth_bytes(config, shape, part, partial).kept;
  // What the first norm gives is dropped in Devlin's order and where embeddings are normalized: no pass over the norm's
  // input gives that again.
  const bool drops_after_norm =
      (config.model.apply_residual_connection_post_layernorm || config.model.embedding_layernorm) &&
      config.model.hidden_dropout > 0;
  if (part.first_layer == 0 && part.num_layers > 0 && !begins_again && drops_after_norm) bytes += stream_of(false);
  return bytes;
}

std::int64_t recomputed_bytes(const config::RunConfig& config, const ModelShape& shape, const StageSpec& part,
                              bool partial) {
  std::int64_t most = 0;
  ByLayerKind<std::int64_t> kept(shape);
  for (const LayerGroup& group : autograd_groups(config.train, shape, part, partial)) {
    std::int64_t bytes = 0;
    for (std::int64_t l = group.first; group.again && l < group.last; ++l)
      bytes +=
          kept.of(part.first_layer + l, [&](const LayerSpec& layer) { return layer_activation_bytes(config, layer); });
    most = std::max(most, bytes);
  }
  return std::max(most, depth_bytes(config, shape, part, partial).again);
}

schedule::Costs stage_costs(const config::RunConfig& config, const ModelShape& shape,
                            const std::vector<StageSpec>& parts) {
  const std::int64_t batch = config.train.micro_batch_size, length = config.data.seq_length;
  const double unit = 1e12 * config.parallel.tp * config.parallel.cp;  // ranks that share them
  // A BERT's tokens that are not masked have no logits.
  const double output =
      output_flops(shape, batch * (shape.encoder_decoder() ? config.data.decoder_seq_length : length)) / unit *
      (shape.masked_lm_head ? config.data.mask_prob : 1);
  const EmbeddingOperations embedding = embedding_operations(config, shape);
  const LayerRecomputation recomputation = layer_recomputation(config.train, shape.num_layers);
  schedule::Costs costs;
  ByLayerKind<LayerFlops> flops_of(shape);
  ByLayerKind<std::pair<double, double>> weight_bytes_of(shape);  // and of partial microbatches
  for (const StageSpec& part : parts) {
    double forward = part.output ? 3 * output : 0, input = 0, partial_input = 0, weight = 0, weight_bytes = 0,
           partial_weight_bytes = 0;
    const std::vector<bool> again = layers_again(config.train, shape, part, false),
                            partially_again = layers_again(config.train, shape, part, true);
    for (const auto& [first, number, decoder] : stretches_of(shape, part)) {
      for (std::int64_t l = 0; l < number; ++l) {
        const auto in_stage = static_cast<std::size_t>(first - part.first_layer + l);
        const LayerFlops& flops = flops_of.of(first + l, [&](const LayerSpec& layer) {
          return layer_flops(layer, tokens_of(layer, batch, length, config.data.decoder_seq_length));
        });
        const auto& [bytes, partial_bytes] = weight_bytes_of.of(first + l, [&](const LayerSpec& layer) {
          return std::pair(static_cast<double>(layer_weight_bytes(config, layer, false)),
                           static_cast<double>(layer_weight_bytes(config, layer, true)));
        });
        const double matrices = flops.matrices / unit, attention = flops.attention / unit;
        const double backward = matrices + 2 * attention;
        input += backward + (again[in_stage] ? matrices + attention : 0);
        if (recomputes(config, "core_attn", false)) input += attention;
        if (recomputes(config, "mlp", false)) input += flops.fc1 / unit;
        partial_input += backward + (partially_again[in_stage] ? matrices + attention : 0);
        forward += matrices + attention;
        weight += matrices;
        weight_bytes += bytes;
        partial_weight_bytes += partial_bytes;
      }
      if (decoder && number > 0) {  // what k and v of cross attention are products of, the same in each layer
        const auto states =
            static_cast<double>(tokens_of(config) * stream_width(config, shape.hidden) * element_bytes(config));
        weight_bytes += states;
        partial_weight_bytes += states;
      }
    }
    for (std::int64_t k = 0; part.output && k < shape.mtp_depths; ++k) {
      const LayerFlops flops = depth_flops(shape.prediction_depth(k), {.sequences = batch, .length = length});
      const double matrices = flops.matrices / unit, attention = flops.attention / unit;
      const double backward = matrices + 2 * attention + embedding.backward / 1e12;
      const auto again = [&](bool partly) { return depths_again(recomputation, partly) ? matrices + attention : 0; };
      forward += matrices + attention + 3 * output + embedding.forward / 1e12;
      input += backward + again(false);
      if (recomputes(config, "core_attn", false)) input += attention;
      if (recomputes(config, "mlp", false)) input += flops.fc1 / unit;
      partial_input += backward + again(true);
      weight += matrices;
    }
    if (part.output && shape.mtp_depths > 0) {
      weight_bytes += static_cast<double>(depth_weight_bytes(config, shape, false));
      partial_weight_bytes += static_cast<double>(depth_weight_bytes(config, shape, true));
    }
    if (part.embedding) {  // every tensor-parallel rank's, whole; its gradient is never put off
      forward += embedding.forward / 1e12;
      input += embedding.backward / 1e12;
      partial_input += embedding.backward / 1e12;
    }
    costs.forward.push_back(forward);
    costs.backward_input.push_back(input);
    costs.partial_backward_input.push_back(partial_input);
    costs.backward_weight.push_back(weight);
    costs.activation_bytes.push_back(static_cast<double>(stage_activation_bytes(config, shape, part)));
    costs.partial_activation_bytes.push_back(static_cast<double>(stage_activation_bytes(config, shape, part, true)));
    costs.weight_bytes.push_back(weight_bytes);
    costs.partial_weight_bytes.push_back(partial_weight_bytes);
  }
  return costs;
}

SplitCosts split_costs(const config::RunConfig& config, const ModelShape& shape, int num_stages) {
  const std::int64_t of_stage =
      std::max<std::int64_t>(1, (shape.num_layers + num_stages - 1) / std::max(1, num_stages));
  config::RunConfig once = config;
  if (once.train.recompute == "full") once.train.recompute = "none";
  std::vector<StageSpec> parts{{.num_layers = 0, .embedding = true, .output = false},
                               {.num_layers = 0, .embedding = false, .output = true}};
  for (std::int64_t l = 0; l < shape.num_layers; ++l)
    parts.push_back({.first_layer = l, .num_layers = 1, .embedding = false, .output = false});
  const schedule::Costs costs = stage_costs(once, shape, parts);
  const auto sum = [&](std::size_t part) {
    return costs.forward[part] + costs.backward_input[part] + costs.backward_weight[part];
  };
  const LayerRecomputation again = layer_recomputation(config.train, shape.num_layers);
  const auto share_again = [&](std::int64_t l) -> double {
    const StageSpec part{.first_layer = l, .num_layers = 1};
    if (again.method != LayerRecomputation::Method::Block || again.some_partial)
      return layer_groups(again, part).front().again ? 1 : 0;
    return static_cast<double>(std::min(again.num_layers, of_stage)) / static_cast<double>(of_stage);
  };
  SplitCosts result{.layers = {}, .embedding = sum(0), .output = sum(1)};
  for (std::int64_t l = 0; l < shape.num_layers; ++l) {
    const auto part = static_cast<std::size_t>(l) + 2;
    result.layers.push_back(sum(part) + share_again(l) * costs.forward[part]);
  }
  return result;
}

std::int64_t loss_chunk_tokens(const config::RunConfig& config) {
  if (config.train.loss_chunk_tokens > 0) return config.train.loss_chunk_tokens;
  return config.parallel.device == "cuda" ? 8192 : 1024;
}

namespace {

/// The instruction set of a rank on its processor.
std::string_view kernels_of(const config::TrainConfig& train, std::string_view processor) {
  return train.kernels == "auto" ? processor : std::string_view(train.kernels);
}

}  // namespace

bool packs_weights(const config::RunConfig& config, std::string_view processor) {
  const config::TrainConfig& train = config.train;
  if (config.parallel.device != "cpu") return false;
  const std::string_view kernels = kernels_of(train, processor);
  const bool tiles = kernels == "amx";
  return train.dtype == "bf16" ? tiles || kernels == "avx512_bf16"
                               : tiles && train.dtype == "fp32" && train.matmul_precision == "high";
}

namespace {

/// Bytes of one copy of a matrix in blocks of 32 x 32.
std::int64_t packed_copy_bytes(const config::TrainConfig& train, const ParameterSpec& matrix) {
  constexpr std::int64_t kBlock = 32, kNumberBytes = 2;
  const std::vector<std::int64_t> shape = matrix.local_shape();
  const std::int64_t numbers = train.dtype == "fp32" ? 2 : 1;
  return (shape[0] + kBlock - 1) / kBlock * kBlock * ((shape[1] + kBlock - 1) / kBlock * kBlock) * numbers *
         kNumberBytes;
}

}  // namespace

std::int64_t packed_weight_bytes(const config::TrainConfig& train, const std::vector<ParameterSpec>& specs) {
  constexpr std::int64_t kCopies = 2;
  std::int64_t bytes = 0;
  for (const ParameterSpec& spec : specs) {
    const bool looked_up = spec.is_word_matrix() || spec.name.starts_with("embedding.");
    if (spec.depth > 0 && !looked_up && spec.shape.size() >= 2) bytes += kCopies * packed_copy_bytes(train, spec);
  }
  return bytes;
}

std::int64_t forward_copy_bytes(const ResolvedRun& run, int tp_rank, int pp_rank, std::string_view processor) {
  const config::RunConfig& config = run.config;
  if (!packs_weights(config, processor)) return 0;
  const std::vector<StageSpec> parts = parts_of_rank(run.parts, run.placement, pp_rank);
  const bool has_output = std::ranges::any_of(parts, &StageSpec::output);
  const auto [ep, etp] = expert_layout(config.parallel);
  std::int64_t bytes = 0;
  for (const ParameterSpec& spec : model_parameters(run.shape, config.parallel.tp, tp_rank, parts,
                                                    {.ep = ep, .etp = etp, .etp_rank = tp_rank % etp})) {
    const bool multiplies_words = has_output && (run.shape.tied_output || spec.name != kWordEmbedding);
    const bool looked_up = spec.is_word_matrix() ? !multiplies_words : spec.name.starts_with("embedding.");
    if (!looked_up && spec.shape.size() >= 2) bytes += packed_copy_bytes(config.train, spec);
  }
  return bytes;
}

std::int64_t packed_operand_bytes(std::int64_t tokens, std::int64_t out, std::int64_t in) {
  constexpr std::int64_t kLeastRows = 128, kLeastWidth = 256, kBlock = 32, kElementBytes = 6;
  const auto packed = [](std::int64_t lines, std::int64_t depth) {
    const std::int64_t blocks = ((lines + kBlock - 1) / kBlock) * ((depth + kBlock - 1) / kBlock);
    return std::min(kMostPackedOperandBytes, blocks * kBlock * kBlock * kElementBytes);
  };
  if (tokens < kLeastRows || std::min(out, in) < kLeastWidth) return 0;
  const std::int64_t weight = packed(out, in);
  const std::int64_t most = std::max(packed(tokens, in), packed(tokens, out)) + weight;
  return tokens < kLeastWidth ? most : std::max(most, packed(out, tokens) + packed(in, tokens));
}

std::int64_t constants_of_norms(const ModelShape& shape, const std::vector<ParameterSpec>& specs) {
  const bool zeros = !shape.rms_norm && !shape.norm_bias, ones = shape.attention.qk_l2_norm;
  std::int64_t numbers = 0;
  for (const ParameterSpec& spec : specs) {
    if (zeros && spec.shape.size() == 1 && spec.name.ends_with(".weight")) numbers += spec.local_size();  // a norm's
    if (ones && spec.name.ends_with(".linear_qkv.weight")) numbers += shape.head();
  }
  return numbers;
}

RankActivations::RankActivations(const schedule::Timeline& timeline, int pp_rank)
    : peak_bytes(timeline.peak_bytes[static_cast<std::size_t>(pp_rank)]),
      partial_stages(schedule::partial_stages(timeline, pp_rank)) {}

namespace {

/// Of parameters that take turns: copies of two units that follow one another, the most there are, and of those that
/// the rank owns whole.
std::int64_t packed_in_turn_bytes(const config::TrainConfig& train, const std::vector<ParameterSpec>& specs,
                                  const BufferLayout& layout, const ParameterPool& pool) {
  const auto packed = [&](int bucket) {
    std::vector<ParameterSpec> held;
    for (const int parameter : layout.buckets[static_cast<std::size_t>(bucket)].parameters)
      held.push_back(specs[static_cast<std::size_t>(parameter)]);
    return packed_weight_bytes(train, held);
  };
  std::vector<std::int64_t> units;
  for (const ParameterUnit& unit : pool.units) {
    units.push_back(0);
    for (const int bucket : unit.buckets) units.back() += packed(bucket);
  }
  std::int64_t most = units.empty() ? 0 : std::ranges::max(units), owned = 0;
  for (const auto& [a, b] : neighbours(pool))
    most = std::max(most, units[static_cast<std::size_t>(a)] + units[static_cast<std::size_t>(b)]);
  for (std::size_t b = 0; b < layout.buckets.size(); ++b)
    if (pool.begin[b] == ParameterPool::kOwned) owned += packed(static_cast<int>(b));
  return most + owned;
}

/// Those of `specs` whose copies a step keeps: not those of layers that compute in 8 bits, nor of products with many
/// tokens (kTokensPackedWhileRead). Cross attention counts as its stack.
std::vector<ParameterSpec> with_copies(const ResolvedRun& run, std::vector<ParameterSpec> specs) {
  std::set<std::string> in_8_bits;
  if (run.config.fp8.format != "none")
    for (const std::string& layer : fp8_layers(run.shape)) in_8_bits.insert(layer + ".weight");
  for (ParameterSpec& spec : specs) {
    const bool decoder = run.shape.encoder_decoder() && spec.name.starts_with("decoder.");
    const bool many = !spec.of_expert && tokens_of(run.config, decoder) >= kTokensPackedWhileRead;
    if (many || in_8_bits.contains(spec.name)) spec.depth = 0;
  }
  return specs;
}

/// Tokens of a microbatch that have logits (parallel/output_layer.h): of a BERT's the masked ones, unless these are
/// nearly all.
std::int64_t tokens_with_logits(const ResolvedRun& run) {
  const std::int64_t tokens = tokens_of(run.config, run.shape.encoder_decoder());
  const double share = run.config.data.mask_prob;
  if (!run.shape.masked_lm_head || share > 7.0 / 8) return tokens;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(share * static_cast<double>(tokens))));
}

/// Of the rank's products that of which most is packed, packed_operand_bytes(). Experts count with all tokens.
std::int64_t most_packed_bytes(const ResolvedRun& run, const std::vector<StageSpec>& parts,
                               const std::vector<ParameterSpec>& specs, std::string_view processor) {
  const config::RunConfig& config = run.config;
  if (config.parallel.device != "cpu" || config.train.dtype != "fp32" || kernels_of(config.train, processor) != "amx")
    return 0;
  const bool has_output = std::ranges::any_of(parts, &StageSpec::output);
  std::int64_t most = 0;
  for (const ParameterSpec& spec : specs) {
    const bool is_output = spec.is_word_matrix() && has_output && run.shape.predicts_tokens();
    if (spec.shape.size() != 2 || (spec.depth == 0 && !is_output)) continue;
    const bool decoder = run.shape.encoder_decoder() && spec.name.starts_with("decoder.");
    const std::int64_t tokens =
        is_output ? std::min(loss_chunk_tokens(config), tokens_with_logits(run)) : tokens_of(config, decoder);
    const std::vector<std::int64_t> shape = spec.local_shape();
    most = std::max(most, packed_operand_bytes(tokens, shape[0], shape[1]));
  }
  return most;
}

/// What a rank holds whatever its schedule.
MemoryPlan held_by(const ResolvedRun& run, int tp_rank, const std::vector<StageSpec>& parts,
                   std::string_view processor) {
  const config::RunConfig& config = run.config;
  const auto [ep, etp] = expert_layout(config.parallel);
  const std::vector<ParameterSpec> specs = trained_parameters(run.shape, config.parallel.tp, tp_rank, parts,
                                                              {.ep = ep, .etp = etp, .etp_rank = tp_rank % etp});
  const BufferLayout layout = rank_layout(run, specs);
  const std::optional<GradientPool> pool = rank_gradient_pool(run, specs, layout);
  const std::optional<ParameterPool> values = rank_parameter_pool(run, specs, layout, parts);
  const std::int64_t elements = layout.size, owned = owned_elements(layout, owners_of(run));
  const ElementBytes element = element_bytes_of(config);
  MemoryPlan memory;
  memory.parameters = (values ? values->size + owned : elements) * element.value;
  memory.gradients = (pool ? pool->size + owned : elements) * element.gradient;
  memory.optimizer_state = optimizer_bytes(run, specs, layout);
  if (const auto fp8 = fp8_recipe(config.fp8))
    memory.optimizer_state += fp8_state_bytes(*fp8, static_cast<std::int64_t>(fp8_layers(run.shape).size()),
                                              config.parallel.device == "cuda");
  const std::optional<FrozenWeights> frozen =
      frozen_weights(run, tp_rank, parts, {.ep = ep, .etp = etp, .etp_rank = tp_rank % etp});
  if (frozen)
    memory.parameters +=
        (frozen->pool ? frozen->pool->size + owned_elements(frozen->layout, owners_of(run)) : frozen->layout.size) *
        element.value;
  memory.parameters += constants_of_norms(run.shape, frozen ? frozen->specs : specs) * element.value;
  if (!packs_weights(config, processor)) {
    memory.packed_weights = most_packed_bytes(run, parts, frozen ? frozen->specs : specs, processor);
    return memory;
  }
  const std::vector<ParameterSpec> multiplied = with_copies(run, frozen ? frozen->specs : specs);
  const std::optional<ParameterPool>& in_turn = frozen ? frozen->pool : values;
  memory.packed_weights =
      in_turn ? packed_in_turn_bytes(config.train, multiplied, frozen ? frozen->layout : layout, *in_turn)
              : packed_weight_bytes(config.train, multiplied);
  return memory;
}

/// Of the last stage. A loss of preferences or of a teacher has all logits of a microbatch, whole on each rank of tp:
/// the first in float32 or wider, the second the student's and the teacher's, with fp16 their gradient in float32 too.
std::int64_t logit_bytes(const ResolvedRun& run) {
  const config::RunConfig& config = run.config;
  const std::int64_t element = element_bytes_of(config).value;
  const bool compares = config.dpo.beta > 0, learns = !config.distill.teacher.empty();
  if (compares || learns) {
    const std::int64_t pair = 2 * element + (config.train.dtype == "fp16" ? 4 : 0);
    return tokens_with_logits(run) * run.shape.vocab * (compares ? std::max<std::int64_t>(element, 4) : pair);
  }
  return std::min(loss_chunk_tokens(config), tokens_with_logits(run)) * (run.shape.padded_vocab / config.parallel.tp) *
         element * (run.shape.logit_soft_cap > 0 ? 2 : 1);  // and the slope of the cap
}

/// `memory` with what the passes of a pipeline rank hold, and its teacher.
MemoryPlan in_passes(MemoryPlan memory, const ResolvedRun& run, int pp_rank, const RankActivations& activations) {
  const std::vector<StageSpec> parts = parts_of_rank(run.parts, run.placement, pp_rank);
  const config::RunConfig& config = run.config;
  std::int64_t recomputed = 0;
  for (const StageSpec& part : parts)
    recomputed = std::max(recomputed,
                          recomputed_bytes(config, run.shape, part, activations.partial_stages.contains(part.stage)));
  memory.activations = static_cast<std::int64_t>(activations.peak_bytes) + recomputed;
  memory.teacher = teacher_bytes(run, pp_rank);
  if (run.shape.predicts_tokens() &&
      std::any_of(parts.begin(), parts.end(), [](const StageSpec& part) { return part.output; }))
    memory.logits = logit_bytes(run);
  return memory;
}

}  // namespace

MemoryPlan memory_plan(const ResolvedRun& run, int tp_rank, int pp_rank, const RankActivations& activations,
                       std::string_view processor) {
  const std::vector<StageSpec> parts = parts_of_rank(run.parts, run.placement, pp_rank);
  return in_passes(held_by(run, tp_rank, parts, processor), run, pp_rank, activations);
}

MemoryPlan largest_memory(const ResolvedRun& run, std::string_view processor) {
  const schedule::Timeline timeline = schedule::simulate(pipeline_program(run, run.microbatches_per_step),
                                                         stage_costs(run.config, run.shape, run.parts));
  MemoryPlan largest;
  std::vector<std::pair<int, MemoryPlan>> known;  // pipeline ranks, each unlike the others
  for (int pp_rank = 0; pp_rank < run.grid.size(Axis::Pp); ++pp_rank) {
    auto alike = std::ranges::find_if(known, [&](const auto& other) { return same_sizes(run, other.first, pp_rank); });
    if (alike == known.end())  // slices of the ranks of tp are all as long
      alike = known.insert(known.end(),
                           {pp_rank, held_by(run, 0, parts_of_rank(run.parts, run.placement, pp_rank), processor)});
    const MemoryPlan memory = in_passes(alike->second, run, pp_rank, {timeline, pp_rank});
    if (memory.total() > largest.total()) largest = memory;
  }
  return largest;
}

}  // namespace megatron::plan
