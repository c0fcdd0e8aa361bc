#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/config/megatron/translation.h"

// The network, its positions and how ranks share it.
namespace megatron::config {
namespace {

void activation(Translation& c, ModelConfig& m) {
  m.add_bias_linear = !c.args.has("disable-bias-linear");
  c.require(!c.args.has("swiglu") || !c.args.has("squared-relu"), "--swiglu and --squared-relu exclude one another.",
            "both", "leave --squared-relu out");
  const bool quick = c.args.has("quick-geglu");
  for (const char* other : {"swiglu", "squared-relu"})
    c.require(!quick || !c.args.has(other), concat("--quick-geglu and --", other, " exclude one another."), "both",
              concat("leave --", other, " out"));
  const bool fused = m.add_bias_linear && !c.args.has("no-bias-gelu-fusion");
  m.gated_linear_unit = c.args.has("swiglu") || quick;
  // The fused kernel has the approximation by tanh, F.gelu the exact function.
  m.activation = quick                        ? "quick_gelu"
                 : m.gated_linear_unit        ? "silu"
                 : c.args.has("squared-relu") ? "squared_relu"
                 : fused                      ? "gelu_tanh"
                                              : "gelu";
  if (m.gated_linear_unit || c.args.has("squared-relu"))
    c.ignore("no-bias-gelu-fusion", quick                  ? "with --quick-geglu"
                                    : c.args.has("swiglu") ? "with --swiglu"
                                                           : "with --squared-relu");
  // Megatron-LM's fused kernels of other units read neither.
  if (c.args.has("activation-func-clamp-value")) {
    if (!quick) c.miss("activation-func-clamp-value", "clamped units other than --quick-geglu");
    m.activation_func_clamp_value = c.args.number("activation-func-clamp-value");
  }
  m.glu_linear_offset = c.args.number("glu-linear-offset");
  if (m.glu_linear_offset != 0 && !quick) c.miss("glu-linear-offset", "an offset of units other than --quick-geglu");
}

/// Of how many layers one is without something; a list of single layers is not here.
std::int64_t skipped(Translation& c, const char* name) {
  if (!c.args.has(name)) return 0;
  std::int64_t period = 0;
  const std::string text = c.args.text(name);
  if (!read_integer(text, period) || period < 1) c.miss(name, "a list of single layers");
  return period;
}

void window(Translation& c, ModelConfig& m) {
  if (!c.args.has("window-size")) return c.ignore("window-attn-skip-freq", "without --window-size");
  m.window_attn_skip_freq = skipped(c, "window-attn-skip-freq");
  std::string text = c.args.text("window-size");
  std::erase_if(text, [](char c) { return c == '(' || c == ')' || c == ' '; });
  const std::size_t comma = text.find(',');
  std::int64_t left = 0, right = 0;
  const bool two = comma != std::string::npos && read_integer(text.substr(0, comma), left) &&
                   read_integer(text.substr(comma + 1), right) && left >= -1 && right >= -1;
  if (c.traits().causal)
    c.require(two && right <= 0,
              "--window-size must be the tokens before and the tokens behind, of which a GPT sees none.", text,
              "--window-size 128,0");
  else
    c.require(two && left == right, "--window-size of an encoder must be as many tokens before as behind.", text,
              "--window-size 128,128");
  if (two && left >= 0) m.sliding_window = left + 1;  // the token itself counts
}

void width_scaling(Translation& c, ModelConfig& m) {
  m.use_mup = c.args.has("use-mup");
  if (!m.use_mup) {
    for (const char* name :
         {"mup-base-hidden-size", "mup-embedding-mult", "mup-output-mult", "mup-base-head-dim", "mup-attn-scale-power"})
      c.ignore(name, "without --use-mup");
    return;
  }
  if (!c.traits().causal) c.miss("use-mup", "maximal update parametrization of models other than GPTs");
  if (c.args.has("mup-base-hidden-size")) m.mup_base_hidden_size = c.args.integer("mup-base-hidden-size");
  m.mup_embedding_mult = c.args.number("mup-embedding-mult");
  m.mup_output_mult = c.args.number("mup-output-mult");
  if (c.args.has("mup-base-head-dim")) m.mup_base_head_dim = c.args.number("mup-base-head-dim");
  m.mup_attn_scale_power = c.args.number("mup-attn-scale-power");
}

/// Multi-head latent attention, which is rotated in pairs of neighbours and by default stretched by YaRN.
void latents(Translation& c, ModelConfig& m) {
  m.multi_latent_attention = c.args.has("multi-latent-attention");
  if (!m.multi_latent_attention) {
    for (const char* name : {"q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim"})
      c.ignore(name, "without --multi-latent-attention");
    if (m.rope_scaling_type != "yarn")
      for (const char* name : {"rotary-scaling-factor", "mscale", "mscale-all-dim"})
        c.ignore(name, "without --multi-latent-attention");
    if (c.args.text("rope-type") == "yarn") c.miss("rope-type", "YaRN");
    return c.ignore("rope-type", "without --multi-latent-attention");
  }
  if (c.args.has("q-lora-rank")) m.q_lora_rank = c.args.integer("q-lora-rank");
  m.kv_lora_rank = c.args.integer("kv-lora-rank");
  m.qk_head_dim = c.args.integer("qk-head-dim");
  m.qk_pos_emb_head_dim = c.args.integer("qk-pos-emb-head-dim");
  m.v_head_dim = c.args.integer("v-head-dim");
  m.kv_channels = 0;
  c.ignore("kv-channels", "with --multi-latent-attention");
  if (m.rotary_interleaved) c.miss("rotary-interleaved", "pairs of latent attention that are interleaved twice");
  m.rotary_interleaved = true;
  if (c.args.text("rope-type") == "rope") {
    // Megatron-Core scales scores by it whatever the rotation is.
    if (c.args.number("rotary-scaling-factor") > 1 && c.args.number("mscale-all-dim") != 0)
      return c.miss("mscale-all-dim", "a factor of scores without YaRN");
    for (const char* name : {"rotary-scaling-factor", "mscale", "mscale-all-dim"})
      c.ignore(name, "with --rope-type rope");
    return;
  }
  constexpr std::int64_t kOriginalPositions = 4096;  // which no flag of theirs changes
  m.rope_scaling_type = "yarn";
  m.rope_scaling_factor = c.args.number("rotary-scaling-factor");
  m.rope_original_positions = kOriginalPositions;
  m.mscale = c.args.number("mscale");
  m.mscale_all_dim = c.args.number("mscale-all-dim");
}

/// YaRN of whole heads. --enable-gpt-oss stands for the numbers that Megatron-LM's builder of ModelOpt sets.
void yarn(Translation& c, ModelConfig& m) {
  const bool gpt_oss = c.args.has("enable-gpt-oss");
  const auto number = [&](const char* name, double otherwise) {
    return c.args.has(name) && !gpt_oss ? c.args.number(name) : otherwise;
  };
  m.position_embedding_type = "rope";
  m.rope_scaling_type = "yarn";
  m.rope_scaling_factor = gpt_oss ? 32 : c.args.number("rotary-scaling-factor");
  m.rope_original_positions = gpt_oss ? 131072
                              : c.args.has("yarn-original-max-position-embeddings")
                                  ? c.args.integer("yarn-original-max-position-embeddings")
                                  : 4096;
  m.yarn_beta_fast = number("yarn-beta-fast", 32);
  m.yarn_beta_slow = number("yarn-beta-slow", 1);
  m.yarn_correction_range_round_to_int = !gpt_oss && !c.args.has("no-yarn-correction-range-round-to-int");
  const auto grown = [&](double by) {
    return m.rope_scaling_factor <= 1 ? 1 : 0.1 * by * std::log(m.rope_scaling_factor) + 1;
  };
  const double mscale = c.args.number("mscale"), all_dim = c.args.number("mscale-all-dim");
  const bool usual = gpt_oss || (mscale == 1 && all_dim == 0);  // which is what 0 stands for
  m.yarn_attention_factor = usual ? 0 : grown(mscale) / grown(all_dim);
  if (!c.traits().causal) c.miss("position-embedding-type", "YaRN of models other than GPTs");
  if (c.args.has("multi-latent-attention"))
    c.miss(gpt_oss ? "enable-gpt-oss" : "position-embedding-type", "YaRN of latents by another flag than --rope-type");
  if (c.args.has("rotary-interleaved")) c.miss("rotary-interleaved", "YaRN that rotates pairs of neighbours");
  m.rotary_percent = 1;
  for (const char* name : {"rotary-percent", "use-rope-scaling", "rotary-seq-len-interpolation-factor"})
    c.ignore(name, "with YaRN");
  if (!gpt_oss) return;
  for (const char* name :
       {"position-embedding-type", "use-rotary-position-embeddings", "rotary-scaling-factor", "mscale",
        "mscale-all-dim", "yarn-original-max-position-embeddings", "yarn-beta-fast", "yarn-beta-slow",
        "yarn-correction-range-round-to-int", "no-yarn-correction-range-round-to-int"})
    c.ignore(name, "with --enable-gpt-oss");
}

/// Positions divided by a whole number: the linear stretch.
void interpolation(Translation& c, ModelConfig& m) {
  constexpr const char* kFlag = "rotary-seq-len-interpolation-factor";
  if (!c.args.has(kFlag)) return;
  if (!c.traits().causal) return c.ignore(kFlag, "of pretrain_gpt");
  if (m.position_embedding_type != "rope") return c.ignore(kFlag, "without rotary positions");
  if (c.args.has("multi-latent-attention")) return c.ignore(kFlag, "with --multi-latent-attention");
  const std::int64_t factor = c.args.integer(kFlag);
  if (factor != 1 && c.args.has("use-rope-scaling"))
    return c.miss(kFlag, "interpolation of rotary positions with --use-rope-scaling");
  if (factor == 1) return;
  m.rope_scaling_type = "linear";
  m.rope_scaling_factor = static_cast<double>(factor);
}

void stages(Translation& c, ParallelConfig& p) {
  c.forbid_both("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank");
  c.forbid_both("pipeline-model-parallel-layout", "num-layers-per-virtual-pipeline-stage");
  c.forbid_both("pipeline-model-parallel-layout", "num-virtual-stages-per-pipeline-rank");
  if (c.args.has("num-virtual-stages-per-pipeline-rank"))
    p.vpp = as_int(c.args.integer("num-virtual-stages-per-pipeline-rank"));
  if (c.args.has("num-layers-per-virtual-pipeline-stage"))
    p.layers_per_virtual_stage = c.args.integer("num-layers-per-virtual-pipeline-stage");
  p.pp_layout = c.args.text("pipeline-model-parallel-layout");
  if (c.args.has("decoder-first-pipeline-num-layers"))
    p.first_stage_layers = c.args.integer("decoder-first-pipeline-num-layers");
  if (c.args.has("decoder-last-pipeline-num-layers"))
    p.last_stage_layers = c.args.integer("decoder-last-pipeline-num-layers");
  p.account_for_embedding = c.args.has("account-for-embedding-in-pipeline-split");
  p.account_for_loss = c.args.has("account-for-loss-in-pipeline-split");
  if (c.args.has("microbatch-group-size-per-virtual-pipeline-stage"))
    p.microbatch_group_size = as_int(c.args.integer("microbatch-group-size-per-virtual-pipeline-stage"));
  // Messages overlap with computation in the interleaved schedule alone.
  const std::int64_t layers = c.run.model.num_layers + (p.account_for_embedding ? 1 : 0) + (p.account_for_loss ? 1 : 0);
  const bool interleaved = p.vpp > 1 || !p.pp_layout.empty() ||
                           (p.layers_per_virtual_stage > 0 && layers / std::max(1, p.pp) > p.layers_per_virtual_stage);
  // A ring exchange is sends and receives in both directions at once, which are waited for.
  const bool overlapped =
      interleaved && !c.args.has("no-overlap-p2p-communication") && !c.args.has("use-ring-exchange-p2p");
  p.pp_communication = overlapped ? "overlapped" : "batched";
}

}  // namespace

void translate_model(Translation& c) {
  ModelConfig& m = c.run.model;
  m.architecture = c.kind();
  c.forbid_both("num-layers", "encoder-num-layers");
  const bool from_checkpoint = c.args.has("use-checkpoint-args") && c.args.has("load");
  const auto size = [&](const char* name) {
    return from_checkpoint && !c.args.has(name) ? std::stoll(std::string(needed_example(name))) : c.needed(name);
  };
  m.num_layers = size(c.args.has("encoder-num-layers") ? "encoder-num-layers" : "num-layers");
  m.hidden_size = size("hidden-size");
  m.num_attention_heads = size("num-attention-heads");
  m.max_position_embeddings = size("max-position-embeddings");
  if (c.traits().encoder_decoder && c.args.has("decoder-num-layers"))
    m.decoder_num_layers = c.args.integer("decoder-num-layers");
  if (!c.traits().encoder_decoder) c.ignore("decoder-num-layers", "of pretrain_t5");
  activation(c, m);
  m.ffn_hidden_size = c.args.has("ffn-hidden-size") ? c.args.integer("ffn-hidden-size")
                      : c.args.has("swiglu")        ? product(m.hidden_size, 8) / 3 / 64 * 64
                                                    : product(m.hidden_size, 4);
  const std::int64_t heads = std::max<std::int64_t>(1, m.num_attention_heads);
  c.require(c.args.has("kv-channels") || m.hidden_size % heads == 0,
            "--hidden-size must divide by --num-attention-heads where --kv-channels is not given.",
            concat(m.hidden_size, " and ", heads),
            concat("--kv-channels ", std::max<std::int64_t>(1, m.hidden_size / heads)));
  m.kv_channels = c.args.has("kv-channels") ? c.args.integer("kv-channels") : m.hidden_size / heads;
  if (c.args.has("group-query-attention"))
    m.num_query_groups = c.args.integer("num-query-groups");
  else
    c.ignore("num-query-groups", "without --group-query-attention");
  m.make_vocab_size_divisible_by = c.args.has("no-pad-vocab-size") ? 1 : c.args.integer("make-vocab-size-divisible-by");
  if (c.args.has("no-pad-vocab-size")) c.ignore("make-vocab-size-divisible-by", "with --no-pad-vocab-size");
  m.untie_embeddings_and_output_weights = c.args.has("untie-embeddings-and-output-weights");
  m.bert_binary_head = !c.args.has("bert-no-binary-head");
  m.num_tokentypes = m.bert_binary_head ? 2 : 0;
  if (!c.traits().two_segments) {
    m.bert_binary_head = true;
    m.num_tokentypes = 2;
    c.ignore("bert-no-binary-head", "of pretrain_bert");
  }
  m.normalization = c.args.text("normalization");
  m.apply_residual_connection_post_layernorm = c.args.has("apply-residual-connection-post-layernorm");
  m.fp32_residual_connection = c.args.has("fp32-residual-connection");
  if (m.fp32_residual_connection && c.traits().encoder_decoder)
    c.miss("fp32-residual-connection", "fp32 residual stream of a T5");
  m.layernorm_epsilon = c.args.number("norm-epsilon");
  m.add_qkv_bias = c.args.has("add-qkv-bias");
  m.qk_l2_norm = c.args.has("qk-l2-norm");
  if (m.qk_l2_norm && !c.traits().causal)
    c.miss("qk-l2-norm", "norms of queries and keys without weights, but of a GPT");
  m.attention_output_gate = c.args.has("attention-output-gate");
  if (m.attention_output_gate && !c.traits().causal) c.miss("attention-output-gate", "gated attention, but of a GPT");
  m.qk_layernorm = c.args.has("qk-layernorm") && !m.qk_l2_norm;  // whose norm takes the place of the other
  if (m.qk_l2_norm) c.ignore("qk-layernorm", "with --qk-l2-norm");
  m.softmax_type = c.args.text("softmax-type");
  if (m.softmax_type != "vanilla" && !c.traits().causal) c.miss("softmax-type", "softmax sinks, but of a GPT");
  m.apply_layernorm_1p = c.args.has("apply-layernorm-1p");
  if (m.apply_layernorm_1p && !c.traits().causal) c.miss("apply-layernorm-1p", "norms of 1 + weight, but of a GPT");
  m.init_method_std = c.args.number("init-method-std");
  m.init_method_xavier_uniform = c.args.has("init-method-xavier-uniform");
  if (c.args.has("embedding-init-method-std")) m.embedding_init_method_std = c.args.number("embedding-init-method-std");
  m.hidden_dropout = c.args.number("hidden-dropout");
  m.attention_dropout = c.args.number("attention-dropout");
  window(c, m);
  width_scaling(c, m);
  if (c.args.has("mtp-num-layers")) m.mtp_num_layers = c.args.integer("mtp-num-layers");
  if (m.mtp_num_layers > 0)
    m.mtp_loss_scaling_factor = c.args.number("mtp-loss-scaling-factor");
  else
    c.ignore("mtp-loss-scaling-factor", "without --mtp-num-layers");
}

void translate_positions(Translation& c) {
  ModelConfig& m = c.run.model;
  m.position_embedding_type = c.args.text("position-embedding-type");
  bool stretched = c.args.has("enable-gpt-oss");
  if (c.args.has("use-rotary-position-embeddings")) {
    m.position_embedding_type = "rope";
    c.ignore("position-embedding-type", "with --use-rotary-position-embeddings");
  } else if (m.position_embedding_type == "yarn") {
    stretched = true;
  } else if (m.position_embedding_type == "mrope") {
    c.miss("position-embedding-type", "mRoPE");
  } else if (m.position_embedding_type == "relative") {
    c.miss("position-embedding-type", "relative positions as Megatron-LM has them");
  }
  const bool rope = stretched || m.position_embedding_type == "rope";
  c.require(rope || !c.args.has("no-position-embedding"), "--no-position-embedding needs rotary positions.",
            m.position_embedding_type, "--position-embedding-type none");
  m.relative_attention_num_buckets = c.args.integer("relative-attention-num-buckets");
  m.relative_attention_max_distance = c.args.integer("relative-attention-max-distance");
  m.rotary_base = static_cast<double>(c.args.integer("rotary-base"));
  m.rotary_percent = c.args.number("rotary-percent");
  m.rotary_interleaved = rope && c.args.has("rotary-interleaved");
  if (rope) m.no_rope_freq = skipped(c, "no-rope-freq");
  if (stretched) {
    yarn(c, m);
  } else {
    interpolation(c, m);
    for (const char* name : {"yarn-original-max-position-embeddings", "yarn-beta-fast", "yarn-beta-slow",
                             "yarn-correction-range-round-to-int", "no-yarn-correction-range-round-to-int"})
      c.ignore(name, "without --position-embedding-type yarn");
  }
  if (rope && !stretched && c.args.has("use-rope-scaling"))
    m.rope_scaling_factor = c.args.number("rope-scaling-factor");
  if (!rope)
    for (const char* name : {"rotary-interleaved", "use-rope-scaling", "rotary-base", "rotary-percent", "no-rope-freq"})
      c.ignore(name, "without rotary positions");
  if (!rope || !c.args.has("use-rope-scaling")) c.ignore("rope-scaling-factor", "without --use-rope-scaling");
  latents(c, m);
}

namespace {

/// --cp-comm-type is one word for all layers, or one for each.
void translate_sequence_exchange(Translation& c, ParallelConfig& p) {
  if (p.cp <= 1) return c.ignore("cp-comm-type", "with --context-parallel-size 1");
  if (c.is_saved() || !c.args.has("cp-comm-type")) return;  // auto: no result depends on it
  const std::vector<std::string> types = c.args.list("cp-comm-type");
  p.cp_comm_type = types.front();
  if (std::ranges::find(types, "a2a+p2p") != types.end())
    c.miss("cp-comm-type", "context parallelism in levels");
  else if (std::ranges::any_of(types, [&](const std::string& type) { return type != types.front(); }))
    c.miss("cp-comm-type", "context parallelism that differs by layer");
}

}  // namespace

void translate_layout(Translation& c) {
  ParallelConfig& p = c.run.parallel;
  p.world_size = c.launch.world_size;
  p.tp = as_int(c.args.integer("tensor-model-parallel-size"));
  p.cp = as_int(c.args.integer("context-parallel-size"));
  translate_sequence_exchange(c, p);
  p.pp = as_int(c.args.integer("pipeline-model-parallel-size"));
  p.ep = as_int(c.args.integer("expert-model-parallel-size"));
  if (c.args.has("expert-tensor-parallel-size") && c.args.has("num-experts")) {
    const int etp = as_int(c.args.integer("expert-tensor-parallel-size"));
    p.etp = etp == p.tp ? 0 : etp;
    c.require(etp > 0, "--expert-tensor-parallel-size must be at least 1.", concat(etp),
              "--expert-tensor-parallel-size 1");
  }
  p.sp = p.tp > 1 && c.args.has("sequence-parallel");
  if (p.tp <= 1) c.ignore("sequence-parallel", "with --tensor-model-parallel-size 1");
  stages(c, p);
  p.backend = c.launch.device == "cuda" ? c.args.text("distributed-backend") : "auto";
  p.device = c.launch.device;
  p.timeout_s = static_cast<double>(product(c.args.integer("distributed-timeout-minutes"), 60));
}

}  // namespace megatron::config
