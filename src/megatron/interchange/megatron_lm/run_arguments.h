#pragma once
#include "megatron/config/run_config.h"

namespace megatron::interchange {

/// The arguments of Megatron-LM that are one option here, by the names that its checkpoints give them: what is read of
/// one and what is written to one. `v` has text(), flag(), number(), size() for whole numbers from 1 on and count() for
/// those from 0 on, each of a name and the option's value.
template <class Visitor, class Run>
void visit_run_arguments(Visitor& v, Run& run) {
  auto& data = run.data;
  v.size("seq_length", data.seq_length);
  v.text("split", data.split);
  v.flag("reset_position_ids", data.reset_position_ids);
  v.flag("reset_attention_mask", data.reset_attention_mask);
  v.flag("eod_mask_loss", data.eod_mask_loss);
  v.number("mask_prob", data.mask_prob);
  v.number("short_seq_prob", data.short_seq_prob);
  v.count("vocab_extra_ids", data.vocab_extra_ids);
  auto& train = run.train;
  v.size("micro_batch_size", train.micro_batch_size);
  v.count("eval_iters", train.eval_iters);
  auto& optimizer = run.optimizer;
  v.text("optimizer", optimizer.name);
  v.number("adam_beta1", optimizer.adam_beta1);
  v.number("adam_beta2", optimizer.adam_beta2);
  v.number("adam_eps", optimizer.adam_eps);
  v.number("sgd_momentum", optimizer.sgd_momentum);
  v.number("weight_decay", optimizer.weight_decay);
  v.flag("decoupled_weight_decay", optimizer.decoupled_weight_decay);
  v.number("clip_grad", optimizer.clip_grad);
  auto& schedule = run.schedule;
  v.number("lr", schedule.lr);
  v.number("min_lr", schedule.min_lr);
  v.number("lr_warmup_init", schedule.lr_warmup_init);
  v.text("lr_decay_style", schedule.lr_decay_style);
}

}  // namespace megatron::interchange
