#include "megatron/interchange/megatron_lm/dist/common_file.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/megatron_lm/pickle_writer.h"
#include "megatron/plan/steps/batch_schedule.h"

namespace megatron::interchange {
namespace {

/// What Megatron-LM's arguments can say of experts: groups count there by as many experts as a token passes of each,
/// topk / group_topk, rounded down.
bool has_words_for_experts(const config::ModelConfig& model) {
  const std::int64_t groups = model.moe_router_num_groups, best = model.moe_router_group_best;
  return model.num_experts == 0 || groups <= 1 || best == 0 ||
         best == model.moe_router_topk / std::max<std::int64_t>(1, model.moe_router_group_topk);
}

/// Latents are rotated by pairs of neighbours there, which no argument says, and stretched by YaRN with constants.
bool has_words_for_latents(const config::ModelConfig& model) {
  constexpr std::int64_t kOriginalPositions = 4096;
  const config::ModelConfig known;
  const bool yarn = model.rope_scaling_type == "yarn" && model.rope_original_positions == kOriginalPositions &&
                    model.yarn_beta_fast == known.yarn_beta_fast && model.yarn_beta_slow == known.yarn_beta_slow &&
                    model.yarn_attention_factor == 0 && model.yarn_correction_range_round_to_int;
  return model.rotary_interleaved && (model.rope_scaling_factor == 1 || yarn);
}

bool stretched_by(const config::ModelConfig& model, const char* type) {
  return model.rope_scaling_factor != 1 && !model.multi_latent_attention && model.rope_scaling_type == type;
}

/// YaRN of whole heads, and positions divided by a whole number.
bool has_words_for_stretch(const config::ModelConfig& model) {
  if (stretched_by(model, "linear")) return model.rope_scaling_factor == std::floor(model.rope_scaling_factor);
  return stretched_by(model, "yarn") && model.yarn_attention_factor == 0 && model.rotary_percent == 1 &&
         !model.rotary_interleaved;
}

bool has_words_for_rope(const config::ModelConfig& model) {
  if (model.multi_latent_attention) return has_words_for_latents(model);
  if (has_words_for_stretch(model)) return true;
  return model.rope_scaling_factor == 1 || (model.rope_scaling_type == "llama3" && model.rope_low_freq_factor == 1 &&
                                            model.rope_high_freq_factor == 4 && model.rope_original_positions == 8192);
}

void write_experts(PickleWriter& pickle, const config::ModelConfig& model, const plan::ModelShape& shape) {
  if (!shape.experts) return pickle.null_entry("num_experts");
  const plan::Experts& experts = *shape.experts;
  const auto given = [&](const char* name, auto value) {
    if (value == 0)
      pickle.null_entry(name);
    else
      pickle.entry(name, value);
  };
  pickle.entry("num_experts", experts.count);
  pickle.entry("moe_ffn_hidden_size", experts.expert.width);
  pickle.text("moe_layer_freq");
  if (shape.dense_layers == 0) {
    pickle.integer(shape.moe_layer_freq);
  } else {
    pickle.begin_list();
    for (std::int64_t l = 0; l < shape.num_layers; ++l) pickle.integer(shape.layer(l).experts() != nullptr ? 1 : 0);
    pickle.end_list();
  }
  given("moe_shared_expert_intermediate_size", experts.shared_width);
  pickle.entry("moe_shared_expert_gate", experts.shared_gate);
  pickle.entry("moe_router_topk", experts.top_k);
  pickle.entry("moe_router_score_function", model.moe_router_score_function);
  pickle.entry("moe_router_pre_softmax", model.moe_router_pre_softmax);
  given("moe_router_topk_scaling_factor",
        model.moe_router_topk_scaling_factor == 1 ? 0.0 : model.moe_router_topk_scaling_factor);
  given("moe_router_num_groups", model.moe_router_num_groups);
  given("moe_router_group_topk", model.moe_router_num_groups > 0 ? model.moe_router_group_topk : std::int64_t{0});
  pickle.entry("moe_router_enable_expert_bias", model.moe_router_enable_expert_bias);
  pickle.entry("moe_router_bias_update_rate", model.moe_router_bias_update_rate);
  pickle.entry("moe_router_dtype", "fp32");
  pickle.entry("moe_router_load_balancing_type", model.moe_aux_loss_coeff > 0 ? "seq_aux_loss" : "none");
  pickle.entry("moe_aux_loss_coeff", model.moe_aux_loss_coeff);
  given("moe_z_loss_coeff", model.moe_z_loss_coeff);
  given("moe_input_jitter_eps", model.moe_input_jitter_eps);
  given("moe_expert_capacity_factor", model.moe_expert_capacity_factor);
  pickle.entry("moe_token_drop_policy", model.moe_token_drop_policy);
}

void write_latents(PickleWriter& pickle, const config::ModelConfig& model) {
  if (!model.multi_latent_attention) return;
  const bool stretched = model.rope_scaling_factor != 1;
  pickle.entry("multi_latent_attention", true);
  if (model.q_lora_rank > 0)
    pickle.entry("q_lora_rank", model.q_lora_rank);
  else
    pickle.null_entry("q_lora_rank");
  pickle.entry("kv_lora_rank", model.kv_lora_rank);
  pickle.entry("qk_head_dim", model.qk_head_dim);
  pickle.entry("qk_pos_emb_head_dim", model.qk_pos_emb_head_dim);
  pickle.entry("v_head_dim", model.v_head_dim);
  pickle.entry("rope_type", stretched ? "yarn" : "rope");
  pickle.entry("rotary_scaling_factor", model.rope_scaling_factor);
  pickle.entry("mscale", model.mscale);
  pickle.entry("mscale_all_dim", model.mscale_all_dim);
}

void write_yarn(PickleWriter& pickle, const config::ModelConfig& model) {
  pickle.entry("rotary_scaling_factor", model.rope_scaling_factor);
  pickle.entry("yarn_original_max_position_embeddings", model.rope_original_positions);
  pickle.entry("yarn_beta_fast", model.yarn_beta_fast);
  pickle.entry("yarn_beta_slow", model.yarn_beta_slow);
  pickle.entry("yarn_correction_range_round_to_int", model.yarn_correction_range_round_to_int);
  pickle.entry("mscale", 1.0);
  pickle.entry("mscale_all_dim", 0.0);
}

/// Options of the network. Throws ConfigError for what Megatron-LM's arguments cannot say.
void write_network(PickleWriter& pickle, const config::ModelConfig& model, std::int64_t vocabulary_rows) {
  const plan::ModelShape shape = families::shape_of(model);
  const bool gated = model.gated_linear_unit;
  const bool by_tanh = model.activation == "gelu_tanh";  // there the kernel that adds a bias
  const bool known =
      gated ? model.activation == "silu"
            : (by_tanh && model.add_bias_linear) || model.activation == "gelu" || model.activation == "squared_relu";
  if (!known)
    throw ConfigError(rule_got_fix(
        "export: Megatron-LM's arguments know gelu, gelu_tanh of models with linear biases, squared_relu "
        "and gated silu.",
        concat(model.activation, gated ? ", gated" : "", by_tanh && !gated ? ", model.add_bias_linear false" : ""),
        by_tanh && !gated ? "keep the checkpoint as it is: every job here reads it" : "--format huggingface"));
  // Of these two groups of options Megatron-LM has arguments for the ones named here.
  const config::AttentionVariant attention{.add_qkv_bias = model.add_qkv_bias,
                                           .qk_layernorm = model.qk_layernorm,
                                           .qk_l2_norm = model.qk_l2_norm,
                                           .attention_output_gate = model.attention_output_gate,
                                           .no_rope_freq = model.no_rope_freq};
  const config::LayerVariant layers{.apply_layernorm_1p = model.apply_layernorm_1p};
  if (!(model == attention) || !(model == layers) || model.apply_residual_connection_post_layernorm ||
      !has_words_for_rope(model) || !has_words_for_experts(model))
    throw ConfigError(
        rule_got_fix("export: Megatron-LM's arguments must be able to say what the network is.",
                     "model.sliding_window, apply_residual_connection_post_layernorm, norms, biases, scales or caps "
                     "that it has no words for, a stretch of rope "
                     "with other constants than Megatron-LM's, or groups of experts that count by others than the "
                     "best moe_router_topk / moe_router_group_topk",
                     "--format huggingface"));
  const bool rope = model.position_embedding_type == "rope";
  const std::int64_t first_stack = shape.encoder_decoder() ? shape.encoder_layers : shape.num_layers;
  pickle.entry("num_layers", first_stack);
  pickle.entry("encoder_num_layers", first_stack);
  if (shape.encoder_decoder()) pickle.entry("decoder_num_layers", shape.num_layers - first_stack);
  pickle.entry("hidden_size", shape.hidden);
  pickle.entry("ffn_hidden_size", shape.ffn_hidden);
  pickle.entry("num_attention_heads", shape.num_heads);
  // Of latent attention they mean nothing.
  pickle.entry("kv_channels", model.multi_latent_attention ? shape.hidden / shape.num_heads : shape.head());
  pickle.entry("group_query_attention", shape.groups() != shape.num_heads);
  pickle.entry("num_query_groups", shape.groups() != shape.num_heads ? shape.groups() : std::int64_t{1});
  pickle.entry("max_position_embeddings", shape.max_positions);
  pickle.entry("padded_vocab_size", vocabulary_rows);
  pickle.entry("vocab_size", shape.vocab);
  pickle.entry("make_vocab_size_divisible_by", model.make_vocab_size_divisible_by);
  pickle.entry("position_embedding_type",
               stretched_by(model, "yarn") ? std::string("yarn") : model.position_embedding_type);
  pickle.entry("add_position_embedding", true);
  pickle.entry("use_rotary_position_embeddings", rope && !stretched_by(model, "yarn"));
  pickle.entry("rotary_base", static_cast<std::int64_t>(std::llround(model.rotary_base)));
  pickle.entry("rotary_percent", model.rotary_percent);
  pickle.entry("rotary_interleaved", model.rotary_interleaved && !model.multi_latent_attention);
  const bool scaled = stretched_by(model, "llama3");
  pickle.entry("use_rope_scaling", scaled);
  pickle.entry("rope_scaling_factor", scaled ? model.rope_scaling_factor : 1.0);
  if (stretched_by(model, "linear"))
    pickle.entry("rotary_seq_len_interpolation_factor",
                 static_cast<std::int64_t>(std::llround(model.rope_scaling_factor)));
  if (stretched_by(model, "yarn")) write_yarn(pickle, model);
  pickle.entry("normalization", model.normalization);
  pickle.entry("norm_epsilon", model.layernorm_epsilon);
  pickle.entry("qk_layernorm", model.qk_layernorm);
  if (model.qk_l2_norm) pickle.entry("qk_l2_norm", true);
  if (model.attention_output_gate) pickle.entry("attention_output_gate", true);
  if (model.no_rope_freq > 0) pickle.entry("no_rope_freq", model.no_rope_freq);
  if (model.mtp_num_layers > 0) {
    pickle.entry("mtp_num_layers", model.mtp_num_layers);
    pickle.entry("mtp_loss_scaling_factor", model.mtp_loss_scaling_factor);
  }
  pickle.entry("add_bias_linear", model.add_bias_linear);
  pickle.entry("add_qkv_bias", model.add_qkv_bias);
  pickle.entry("swiglu", gated);
  pickle.entry("squared_relu", model.activation == "squared_relu");
  pickle.entry("openai_gelu", false);
  pickle.entry("bias_gelu_fusion", by_tanh);
  pickle.entry("untie_embeddings_and_output_weights", model.untie_embeddings_and_output_weights);
  pickle.entry("bert_binary_head", model.bert_binary_head);
  pickle.entry("init_method_std", model.init_method_std);
  pickle.entry("init_method_xavier_uniform", model.init_method_xavier_uniform);
  if (model.embedding_init_method_std > 0) pickle.entry("embedding_init_method_std", model.embedding_init_method_std);
  pickle.entry("hidden_dropout", model.hidden_dropout);
  pickle.entry("attention_dropout", model.attention_dropout);
  pickle.entry("apply_layernorm_1p", model.apply_layernorm_1p);
  pickle.entry("apply_query_key_layer_scaling", false);
  write_experts(pickle, model, shape);
  write_latents(pickle, model);
  pickle.null_entry("spec");
}

/// Of a schedule that counts in samples.
struct Schedule {
  explicit Schedule(const TrainingState& training) : recipe(training.recipe) {
    batch = std::max<std::int64_t>(recipe.train.global_batch_size, 1);
    const config::ScheduleConfig& schedule = recipe.schedule;
    run = (schedule.step_batch_size.empty()
               ? plan::BatchSchedule(batch, 1, schedule.rampup_batch_size)
               : plan::BatchSchedule(plan::read_batch_steps(schedule.step_batch_size, recipe.data.seq_length), 1, 0))
              .samples_of(recipe.train.train_iters);
    decay = schedule.lr_decay_samples > 0 ? schedule.lr_decay_samples : run;
    if (schedule.lr_warmup_samples == 0) fraction = schedule.lr_warmup_fraction;
    const bool grows = schedule.weight_decay_incr_style != "constant";
    first_decay = grows ? schedule.start_weight_decay : recipe.optimizer.weight_decay;
    last_decay = grows ? schedule.end_weight_decay : recipe.optimizer.weight_decay;
  }
  const config::RunConfig& recipe;
  std::int64_t batch, run, decay;
  double fraction = 0;                     ///< of the decay, which is warm-up
  double first_decay = 0, last_decay = 0;  ///< of weights
};

void write_muon(PickleWriter& pickle, const config::OptimizerConfig& optimizer) {
  pickle.entry("muon_momentum", optimizer.muon_momentum);
  pickle.entry("muon_nesterov", optimizer.muon_nesterov);
  pickle.entry("muon_num_ns_steps", optimizer.muon_num_ns_steps);
  pickle.entry("muon_scale_mode", optimizer.muon_scale_mode);
  pickle.entry("muon_extra_scale_factor", optimizer.muon_extra_scale_factor);
  pickle.entry("muon_coefficient_type", optimizer.muon_coefficient_type);
  pickle.entry("muon_split_qkv", optimizer.muon_split_qkv);
}

void write_run(PickleWriter& pickle, const TrainingState& training) {
  const config::RunConfig& recipe = training.recipe;
  const Schedule schedule(training);
  const auto& [data, train, optimizer, rates] = std::tie(recipe.data, recipe.train, recipe.optimizer, recipe.schedule);
  pickle.entry("seq_length", data.seq_length);
  pickle.entry("split", data.split);
  pickle.entry("reset_position_ids", data.reset_position_ids);
  pickle.entry("reset_attention_mask", data.reset_attention_mask);
  pickle.entry("eod_mask_loss", data.eod_mask_loss);
  pickle.entry("mask_prob", data.mask_prob);
  pickle.entry("short_seq_prob", data.short_seq_prob);
  pickle.entry("vocab_extra_ids", data.vocab_extra_ids);
  pickle.entry("dataloader_type", data.dataloader_type);
  pickle.entry("micro_batch_size", data.dataloader_type == "cyclic" ? data.cyclic_batch : train.micro_batch_size);
  pickle.entry("eval_iters", train.eval_iters);
  pickle.entry("check_for_nan_in_loss_and_grad", train.exit_on_nan);
  pickle.entry("optimizer", optimizer.name);
  pickle.entry("adam_beta1", optimizer.adam_beta1);
  pickle.entry("adam_beta2", optimizer.adam_beta2);
  pickle.entry("adam_eps", optimizer.adam_eps);
  pickle.entry("sgd_momentum", optimizer.sgd_momentum);
  if (optimizer.name == "muon") write_muon(pickle, optimizer);
  pickle.entry("weight_decay", optimizer.weight_decay);
  pickle.entry("weight_decay_incr_style", rates.weight_decay_incr_style);
  pickle.entry("start_weight_decay", schedule.first_decay);
  pickle.entry("end_weight_decay", schedule.last_decay);
  pickle.entry("decoupled_weight_decay", optimizer.decoupled_weight_decay);
  pickle.entry("clip_grad", optimizer.clip_grad);
  pickle.entry("accumulate_allreduce_grads_in_fp32", optimizer.grad_dtype == "fp32");
  pickle.entry("grad_reduce_in_bf16", train.dtype == "bf16" && optimizer.grad_dtype == "bf16");
  pickle.entry("lr", rates.lr);
  pickle.entry("min_lr", rates.min_lr);
  pickle.entry("lr_warmup_init", rates.lr_warmup_init);
  pickle.entry("lr_decay_style", rates.lr_decay_style);
  pickle.entry("encoder_seq_length", recipe.data.seq_length);
  if (recipe.data.decoder_seq_length > 0) pickle.entry("decoder_seq_length", recipe.data.decoder_seq_length);
  pickle.entry("global_batch_size", schedule.batch);
  pickle.entry("train_iters", recipe.train.train_iters);
  if (!recipe.schedule.rampup_batch_size.empty()) {
    pickle.text("rampup_batch_size");
    pickle.begin_list();
    for (const std::int64_t number : recipe.schedule.rampup_batch_size) pickle.integer(number);
    pickle.end_list();
  }
  pickle.entry("eval_interval", recipe.train.eval_interval);
  if (recipe.train.start_eval_at_iter > 0) pickle.entry("start_eval_at_iter", recipe.train.start_eval_at_iter);
  pickle.entry("seed", static_cast<std::int64_t>(recipe.train.seed));
  pickle.entry("bf16", recipe.train.dtype == "bf16");
  pickle.entry("fp16", recipe.train.dtype == "fp16");
  pickle.entry("lr_decay_samples", schedule.decay);
  pickle.entry("lr_warmup_samples", rates.lr_warmup_samples);
  if (schedule.fraction > 0) pickle.entry("lr_warmup_fraction", schedule.fraction);
  pickle.entry("iteration", training.iteration);
  pickle.entry("consumed_train_samples", training.consumed_samples);
  pickle.entry("skipped_train_samples", 0);
  const std::int64_t interval = recipe.train.eval_interval;
  const std::int64_t validations =
      interval > 0 ? training.validated_iteration / interval - recipe.train.skipped_validations() : 0;
  pickle.entry("consumed_valid_samples",
               std::max<std::int64_t>(0, validations) * recipe.train.eval_iters * schedule.batch);
}

/// Of which parameters an optimizer is: with expert parallelism there is one of experts and one of the others.
struct OptimizerShare {
  bool experts = false;
  bool undecayed = true;  ///< there are some without weight decay
};

/// Parameters with weight decay, or those without. Names of torch's AdamW and of Transformer Engine's FusedAdam.
void write_group(PickleWriter& pickle, const TrainingState& training, bool decays, bool experts) {
  const config::RunConfig& recipe = training.recipe;
  pickle.begin_dict();
  pickle.entry("is_expert_parallel", experts);
  pickle.entry("is_decoupled_lr", false);
  pickle.entry("default_config", true);
  pickle.entry("wd_mult", decays ? 1.0 : 0.0);
  pickle.entry("lr_mult", 1.0);
  pickle.entry("max_lr", recipe.schedule.lr);
  pickle.entry("min_lr", recipe.schedule.min_lr);
  // The schedule sets both before the next step.
  pickle.entry("lr", recipe.schedule.lr);
  pickle.entry("weight_decay", decays ? Schedule(training).last_decay : 0.0);
  pickle.entry("step", training.optimizer_steps);
  if (training.optimizer == "sgd") {
    pickle.entry("momentum", recipe.optimizer.sgd_momentum);
    pickle.entry("dampening", 0);
    pickle.entry("nesterov", false);
  } else {
    pickle.text("betas");
    pickle.begin_tuple();
    pickle.number(recipe.optimizer.adam_beta1);
    pickle.number(recipe.optimizer.adam_beta2);
    pickle.end_tuple();
    pickle.entry("eps", recipe.optimizer.adam_eps);
    pickle.entry("amsgrad", false);
    pickle.entry("capturable", false);
    pickle.entry("bias_correction", true);
    pickle.entry("decoupled_weight_decay", recipe.optimizer.decoupled_weight_decay);
  }
  pickle.entry("maximize", false);
  pickle.null_entry("foreach");
  pickle.entry("differentiable", false);
  pickle.null_entry("fused");
  pickle.end_dict();
}

/// The entries that plain optimizers look for.
void write_plain_optimizer(PickleWriter& pickle, const TrainingState& training, const OptimizerShare& share) {
  pickle.text("state");
  pickle.begin_dict();
  pickle.entry("common_step", static_cast<double>(training.optimizer_steps));
  pickle.end_dict();
  pickle.text("param_groups");
  pickle.begin_list();
  for (const bool decays : {true, false})
    if (decays || share.undecayed) write_group(pickle, training, decays, share.experts);
  pickle.end_list();
}

/// What the optimizers of fp32, of halves and the distributed one look for, in one dictionary: each finds its own.
void write_optimizer(PickleWriter& pickle, const TrainingState& training, const OptimizerShare& share) {
  pickle.begin_dict();
  write_plain_optimizer(pickle, training, share);
  pickle.text("optimizer");
  pickle.begin_dict();
  write_plain_optimizer(pickle, training, share);
  pickle.end_dict();
  pickle.entry("param_state_sharding_type", "fully_reshardable");
  pickle.end_dict();
}

/// A run there with expert parallelism looks for two optimizers by number, one without for one.
void write_optimizers(PickleWriter& pickle, const TrainingState& training) {
  pickle.text("optimizer");
  if (training.recipe.parallel.ep <= 1) return write_optimizer(pickle, training, {});
  const plan::ModelShape shape = families::shape_of(training.recipe.model);
  pickle.begin_dict();
  pickle.integer(0);
  write_optimizer(pickle, training, {});
  pickle.integer(1);
  write_optimizer(pickle, training, {.experts = true, .undecayed = shape.experts && shape.experts->expert.bias});
  pickle.end_dict();
}

void write_scheduler(PickleWriter& pickle, const TrainingState& training) {
  const Schedule schedule(training);
  pickle.text("opt_param_scheduler");
  pickle.begin_dict();
  pickle.entry("max_lr", training.recipe.schedule.lr);
  if (schedule.fraction > 0)  // a float there too
    pickle.entry("lr_warmup_steps", schedule.fraction * static_cast<double>(schedule.decay));
  else
    pickle.entry("lr_warmup_steps", training.recipe.schedule.lr_warmup_samples);
  pickle.entry("num_steps", training.schedule_samples);
  pickle.entry("lr_decay_style", training.recipe.schedule.lr_decay_style);
  pickle.entry("lr_decay_steps", schedule.decay);
  pickle.entry("min_lr", training.recipe.schedule.min_lr);
  pickle.entry("start_wd", schedule.first_decay);
  pickle.entry("end_wd", schedule.last_decay);
  pickle.entry("wd_incr_style", training.recipe.schedule.weight_decay_incr_style);
  const std::int64_t growth = training.recipe.schedule.weight_decay_incr_samples;
  pickle.entry("wd_incr_steps", growth > 0 ? growth : schedule.run);
  pickle.end_dict();
}

}  // namespace

std::string common_pickle(const config::ModelConfig& model, std::int64_t vocabulary_rows, const std::string& dtype,
                          const TrainingState* training) {
  PickleWriter pickle;
  pickle.begin_dict();
  pickle.text("args");
  pickle.begin_object("argparse", "Namespace");
  pickle.begin_dict();
  write_network(pickle, model, vocabulary_rows);
  if (training != nullptr) write_run(pickle, *training);
  pickle.text("params_dtype");
  pickle.name("torch", dtype);
  pickle.entry("tensor_model_parallel_size", 1);
  pickle.entry("pipeline_model_parallel_size", 1);
  const int ep = training != nullptr ? training->recipe.parallel.ep : 1;
  if (ep > 1) pickle.entry("expert_model_parallel_size", ep);
  pickle.entry("ckpt_format", "torch_dist");
  pickle.entry("no_save_optim", training == nullptr || training->kinds.empty());
  pickle.entry("no_save_rng", true);
  pickle.end_dict();
  pickle.end_object();
  pickle.entry("checkpoint_version", 3.0);
  pickle.entry("iteration", training == nullptr ? std::int64_t{0} : training->iteration);
  pickle.entry("num_floating_point_operations_so_far", 0);
  if (training != nullptr && !training->kinds.empty()) {
    write_optimizers(pickle, *training);
    write_scheduler(pickle, *training);
  }
  pickle.text("content_metadata");
  pickle.begin_dict();
  pickle.entry("distrib_optim_sharding_type", "fully_reshardable");
  pickle.entry("singleton_local_shards", false);
  pickle.entry("chained_optim_avoid_prefix", true);
  pickle.end_dict();
  pickle.end_dict();
  return pickle.take();
}

}  // namespace megatron::interchange
