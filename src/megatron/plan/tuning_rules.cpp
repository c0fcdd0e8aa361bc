#include <algorithm>

#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/rule_list.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {
namespace {

/// The option without which, or with which, no layer of the model has a part of that name; "": some have.
std::string missing_with(const config::ModelConfig& model, const std::string& target) {
  const bool latents = model.multi_latent_attention, queries = latents && model.q_lora_rank > 0;
  if (target == "gate_proj" && !model.gated_linear_unit) return "without model.gated_linear_unit";
  if (target == "q_gate_proj" && !model.attention_output_gate) return "without model.attention_output_gate";
  if (target == "q_proj" && queries) return "with model.q_lora_rank";
  if ((target == "k_proj" || target == "v_proj") && latents) return "with model.multi_latent_attention";
  if ((target == "q_a_proj" || target == "q_b_proj") && !queries)
    return latents ? "without model.q_lora_rank" : "without model.multi_latent_attention";
  if (target.starts_with("kv_") && !latents) return "without model.multi_latent_attention";
  return "";
}

void check_lora(const config::RunConfig& config, Rules& rules) {
  const config::LoraConfig& lora = config.lora;
  constexpr const char* kOff = "--lora.rank 0 (the default)";
  rules.range<std::int64_t>("lora.rank", lora.rank, 0, kMaxWidth);
  rules.choices("lora", lora);
  if (lora.rank <= 0) {
    rules.require(lora.base.empty(), "lora.base needs lora.rank: without adapters nothing would be trained on it.",
                  lora.base, "--lora.rank 8; or --load with --finetune, which trains the weights");
    return;
  }
  rules.range("lora.alpha", lora.alpha, 1e-6, 1e6);
  rules.option("lora.dropout", lora.dropout >= 0 && lora.dropout < 1, "must be from 0 to below 1.",
               concat(lora.dropout));
  rules.require(!lora.targets.empty(), "lora.targets must name the layers that get adapters.", "none",
                "--lora.targets all-linear (the default)");
  const config::ModelConfig& model = config.model;
  rules.require(model.head == "tokens", "lora.rank needs model.head tokens: the head of a task would stay as drawn.",
                model.head, kOff);
  rules.require(!model.use_mup, "lora.rank excludes model.use_mup, whose rates are for weights.", "use_mup true", kOff);
  rules.require(config.optimizer.name != "muon",
                "lora.rank needs an optimizer that updates elements: muon sees whole weights.", config.optimizer.name,
                "--optimizer adam");
  for (const std::string& target : lora.targets)
    rules.require(missing_with(model, target).empty(), "lora.targets must name layers of the model.",
                  concat(target, ", ", missing_with(model, target)), "--lora.targets o_proj up_proj down_proj");
  const bool adapts_experts =
      model.num_experts > 0 && std::ranges::any_of(lora.targets, [](const std::string& target) {
        return target == "all-linear" || target == "gate_proj" || target == "up_proj" || target == "down_proj";
      });
  rules.require(!lora.dora || !adapts_experts, "Experts have no magnitudes: lora.dora is of other layers.",
                concat("num_experts ", model.num_experts), "--lora.dora false (the default)");
  const config::CheckpointConfig& checkpoint = config.checkpoint;
  rules.require(!checkpoint.use_checkpoint_args || !lora.base.empty(),
                "With lora.rank checkpoint.use_checkpoint_args takes the network from lora.base.", "no lora.base",
                "--lora.base FOLDER");
}

void check_dpo(const config::RunConfig& config, Rules& rules) {
  const config::DpoConfig& dpo = config.dpo;
  constexpr const char* kOff = "--dpo.beta 0 (the default)";
  rules.range("dpo.beta", dpo.beta, 0.0, 1e6);
  rules.option("dpo.label_smoothing", dpo.label_smoothing >= 0 && dpo.label_smoothing < 0.5,
               "must be from 0 to below 0.5.", concat(dpo.label_smoothing));
  if (dpo.beta <= 0) return;
  const config::ModelConfig& model = config.model;
  const config::ModelTraits& traits = config::model_traits(model.architecture);
  rules.require(traits.causal && !traits.encoder_decoder,
                concat("dpo.beta is for model.architecture ", config::names_with(&config::ModelTraits::causal, " or "),
                       ", which gives answers their probability."),
                model.architecture, kOff);
  rules.require(model.head == "tokens", "dpo.beta needs model.head tokens.", model.head, kOff);
  const config::DataConfig& data = config.data;
  for (const auto& [option, on] : {std::pair{"data.sft", data.sft},
                                   {"data.packed", data.packed},
                                   {"data.fim_data", data.fim_data},
                                   {"data.mock_data", data.mock_data},
                                   {"data.reset_position_ids", data.reset_position_ids},
                                   {"data.reset_attention_mask", data.reset_attention_mask},
                                   {"data.eod_mask_loss", data.eod_mask_loss}})
    rules.require(!on, "dpo.beta reads preferences: one text a sample, whose answer alone counts.", option,
                  concat("--", option, " false"));
  rules.require(data.dataloader_type != "cyclic", "dpo.beta reads the pairs of a pass in data.dataloader_type single.",
                data.dataloader_type, "--dataloader-type single (the default)");
  rules.require(config.train.micro_batch_size % 2 == 0,
                "With dpo.beta train.micro_batch_size counts both texts of a pair: it must be even.",
                concat(config.train.micro_batch_size),
                concat("--micro-batch-size ", config.train.micro_batch_size + 1));
  rules.require(config.train.label_smoothing == 0, "dpo.beta excludes train.label_smoothing.",
                concat(config.train.label_smoothing), "--train.label_smoothing 0 (the default)");
}

void check_distillation(const config::RunConfig& config, Rules& rules) {
  const config::DistillConfig& distill = config.distill;
  rules.range("distill.alpha", distill.alpha, 0.0, 1.0);
  rules.range("distill.temperature", distill.temperature, 1e-3, 1e3);
  if (distill.teacher.empty()) return;
  const std::string off = "leave --distill.teacher out";
  const config::ModelConfig& model = config.model;
  const config::ModelTraits& traits = config::model_traits(model.architecture);
  rules.require(traits.causal && !traits.encoder_decoder,
                concat("distill.teacher is for model.architecture ",
                       config::names_with(&config::ModelTraits::causal, " or "), "."),
                model.architecture, off);
  rules.require(model.head == "tokens", "distill.teacher needs model.head tokens.", model.head, off);
  rules.require(config.dpo.beta == 0, "distill.teacher excludes dpo.beta: each is a loss of its own.",
                concat("dpo.beta ", config.dpo.beta), "--dpo.beta 0 (the default)");
  rules.require(config.train.label_smoothing == 0, "distill.teacher excludes train.label_smoothing.",
                concat(config.train.label_smoothing), "--train.label_smoothing 0 (the default)");
}

/// Losses of their own, and weights that stay as they are, would leave the depths as they were drawn. Their projections
/// are divided by rows.
void check_depths(const config::RunConfig& config, Rules& rules) {
  if (config.model.mtp_num_layers <= 0) return;
  // The folder whose network the run takes would bring them again.
  const bool from_folder = config.checkpoint.use_checkpoint_args &&
                           !(config.lora.rank > 0 ? config.lora.base : config.checkpoint.load).empty();
  struct Exclusion {
    const char *option, *without;
    bool on;
  };
  for (const Exclusion& each :
       {Exclusion{"lora.rank", "leave --lora.rank and --lora.base out", config.lora.rank > 0},
        Exclusion{"dpo.beta", "--dpo.beta 0", config.dpo.beta > 0},
        Exclusion{"distill.teacher", "leave --distill.teacher out", !config.distill.teacher.empty()}})
    rules.require(!each.on, concat(each.option, " excludes model.mtp_num_layers, whose depths it would not train."),
                  concat("mtp_num_layers ", config.model.mtp_num_layers),
                  from_folder ? each.without : "--mtp-num-layers 0 (the default)");
  const std::int64_t hidden = config.model.hidden_size, tp = config.parallel.tp;
  rules.require(tp < 1 || tp > kMaxRanks || hidden % tp == 0,
                "model.mtp_num_layers divides rows of the model's width between ranks: model.hidden_size must divide "
                "by parallel.tp.",
                concat(hidden, ", tp ", tp), "--tp 1 (the default)");
}

}  // namespace

void check_tuning(const config::RunConfig& config, Rules& rules) {
  check_lora(config, rules);
  check_dpo(config, rules);
  check_distillation(config, rules);
  check_depths(config, rules);
}

}  // namespace megatron::plan
