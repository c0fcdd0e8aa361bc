#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/plan/ranks/sequence_share.h"
#include "megatron/plan/report.h"

namespace megatron::plan {
namespace {

using nlohmann::json;

constexpr std::size_t kShown = 4;  // entries of a list

std::string row(const std::string& name, const std::string& value, std::size_t width = 20) {
  return "  " + name + std::string(name.size() < width ? width - name.size() : 0, ' ') + " " + value + "\n";
}

/// Bytes as whole thousandths of one unit, in which the largest of them are shown: sums of what is shown are shown
/// exactly.
class SharedUnit {
 public:
  explicit SharedUnit(double largest) {
    for (const char* name : {"kB", "MB", "GB", "TB"})
      if (largest >= 1000 * unit_) {
        unit_ *= 1000;
        name_ = name;
      }
  }
  std::int64_t thousandths(double bytes) const { return std::llround(bytes / unit_ * (unit_ > 1 ? 1000 : 1)); }
  std::string text(std::int64_t thousandths) const {
    if (unit_ == 1) return concat(thousandths, " B");
    const std::string digits = concat(thousandths % 1000);
    return concat(thousandths / 1000, ".", std::string(3 - digits.size(), '0'), digits, " ", name_);
  }

 private:
  double unit_ = 1;
  const char* name_ = "B";
};

/// The first entries of a list by `text_of`, and that there are more.
template <class TextOf>
std::string beginning(const json& list, std::size_t shown, const TextOf& text_of) {
  std::string out;
  for (std::size_t i = 0; i < std::min(shown, list.size()); ++i) out += (i > 0 ? " " : "") + text_of(list[i]);
  return out + (list.size() > shown ? " …" : "");
}

std::string numbers(const json& list) {
  return "[" + beginning(list, 2 * kShown, [](const json& n) { return n.dump(); }) + "]";
}

/// What a layer has besides attention.
std::string inner_text(const ModelShape& shape) {
  if (!shape.experts) return concat("MLP ", shape.ffn_hidden);
  const Experts& experts = *shape.experts;
  const std::string every = shape.moe_layer_freq > 1 ? concat(" in one layer of ", shape.moe_layer_freq) : "";
  const std::string dense =
      shape.dense_layers > 0 ? concat(", an MLP of ", shape.ffn_hidden, " in the first ", shape.dense_layers) : "";
  const std::string shared = experts.shared_width > 0 ? concat(" and one of ", experts.shared_width, " for all") : "";
  return concat(experts.count, " experts of ", experts.expert.width, every, dense, ", ", experts.top_k, " per token",
                shared);
}

std::string model_text(const ResolvedRun& run, const json& all) {
  const ModelShape& shape = run.shape;
  return "model\n" +
         row("parameters", concat(human_count(all["parameters"]), " (", all["parameters"].get<std::int64_t>(), ")")) +
         row("shape", concat(shape.num_layers, " layers, width ", shape.hidden, ", ", shape.num_heads, " heads, ",
                             inner_text(shape), ", ", shape.max_positions, " positions")) +
         (shape.mtp_depths > 0
              ? row("prediction",
                    concat(shape.mtp_depths, shape.mtp_depths == 1 ? " token" : " tokens", " further ahead"))
              : "") +
         row("vocabulary", concat(shape.vocab, " tokens in ", shape.padded_vocab, " rows"));
}

std::string step_text(const ResolvedRun& run, const json& all) {
  const config::RunConfig& config = run.config;
  std::string batch_steps;
  if (all.contains("batch_steps"))
    batch_steps = row("batch sizes", beginning(all["batch_steps"], kShown, [](const json& step) {
                        return concat(step["global_batch_size"].get<std::int64_t>(), " from sample ",
                                      step["from_sample"].get<std::int64_t>(), " on;");
                      }));
  return "step\n" +
         row("batch", concat(config.train.global_batch_size, " samples of ", config.data.seq_length, " tokens, ",
                             run.microbatches_per_step, " microbatches of ", config.train.micro_batch_size,
                             " on each of dp ", run.grid.sample_shares())) +
         batch_steps + row("arithmetic", human_count(all["flops_per_step"]) + "FLOP") +
         row("run", concat(config.train.train_iters, " steps, ", human_count(all["train_samples"]), " samples, ",
                           human_count(all["train_tokens"]), " tokens"));
}

std::string groups_text(const ResolvedRun& run, const json& groups) {
  const int cp = run.grid.sequence_shares();
  std::string out =
      concat("ranks: ", run.grid.world_size(), " = tp ", run.grid.size(Axis::Tp), cp > 1 ? concat(" x cp ", cp) : "",
             " x dp ", run.grid.sample_shares(), " x pp ", run.grid.size(Axis::Pp), "\n");
  for (const char* name : {"tensor", "sequence", "pipeline", "data", "gradients", "model", "embedding",
                           "position_embedding", "experts", "expert_slices", "expert_copies", "expert_gradients"})
    if (groups.contains(name))
      out += row(name, concat(groups[name].size(), " x ", groups[name][0].size(), "  ",
                              beginning(groups[name], kShown, numbers)));
  return out;
}

/// Which tokens of each sample the ranks of context parallelism have.
std::string sequence_text(const ResolvedRun& run, const json& all) {
  if (!all.contains("sequence")) return "";
  const int cp = run.grid.sequence_shares(), shown = std::min(cp, static_cast<int>(2 * kShown));
  const std::int64_t length = run.config.data.seq_length, decoder = run.config.data.decoder_seq_length;
  std::string out = concat("tokens of a sample: ", length / cp, decoder > 0 ? concat(" and ", decoder / cp) : "",
                           " on each rank, attention by ", all["sequence"]["exchange"].get<std::string>(), "\n");
  for (int rank = 0; rank < shown; ++rank) {
    const SequenceShare share{cp, rank};
    out += row(concat("cp rank ", rank),
               concat(text_of(share.pieces(length)),
                      decoder > 0 ? concat(", of the decoder ", text_of(share.pieces(decoder))) : ""));
  }
  return out + (shown < cp ? row("…", "") : "");
}

/// The stages of each pipeline rank, and the schedule over them.
std::string pipeline_text(const ResolvedRun& run, const json& all) {
  if (run.parts.size() == 1) return "";
  const json& schedule = all["schedule"];
  std::string out =
      concat("pipeline: ", run.parts.size(), " stages, schedule ", schedule["name"].get<std::string>(), "\n");
  const auto share = [](const json& part) { return concat(std::round(1000 * part.get<double>()) / 10, " %"); };
  out += row("bubble", concat(share(schedule["bubble"]), " (by arithmetic ", share(schedule["bubble_by_arithmetic"]),
                              "), makespan ", schedule["makespan"].get<double>(), " units"));
  for (int rank = 0; rank < run.placement.num_ranks(); ++rank) {
    std::string stages;
    for (const int stage : run.placement.stages_of(rank)) {
      const StageSpec& part = run.parts[static_cast<std::size_t>(stage)];
      stages += concat(stages.empty() ? "" : "; ", "stage ", stage, ":", part.embedding ? " embedding" : "");
      if (part.num_layers > 0)
        stages += concat(" layers ", part.first_layer, "-", part.first_layer + part.num_layers - 1);
      if (part.output) stages += " output";
    }
    const auto index = static_cast<std::size_t>(rank);
    std::string partial;
    if (schedule.contains("partial_forwards"))
      partial = concat(", ", schedule["partial_forwards"][index].get<std::int64_t>(), " of ",
                       run.microbatches_per_step * static_cast<std::int64_t>(run.placement.stages_of(rank).size()),
                       " forwards recompute in part");
    out += row(concat("pp rank ", rank),
               concat(stages, "; at most ", schedule["peak_activations"][index].get<int>(), " activations", partial));
  }
  return out;
}

std::string recomputed_text(const json& all) {
  if (!all.contains("recomputed_layers")) return "";
  return concat("layers that backward computes again: ", all["recomputed_layers"].get<std::string>(), "\n");
}

std::string slices_text(const json& parameter) {
  const std::string over = parameter.value("split_over", "tp");
  if (parameter["split_dim"].is_null()) return concat("whole on every ", over, " rank");
  return concat("dim ", parameter["split_dim"].get<int>(), " by ", over,
                " rank: ", beginning(parameter["slices"], kShown, [](const json& ranges) {
                  std::string text;
                  for (const json& range : ranges)
                    text += concat(text.empty() ? "" : "+", range[0].get<std::int64_t>(), "-",
                                   range[1].get<std::int64_t>());
                  return text;
                }));
}

/// Layers are alike: what layer 0 has stands for all of them.
std::string parameters_text(const ResolvedRun& run, const json& parameters) {
  constexpr std::size_t kWidth = 58;
  const std::string any = run.shape.stack() + "layers.", first = any + "0.";
  std::string out = "parameters: shape, and [begin, end) of each slice\n";
  for (const json& parameter : parameters) {
    std::string name = parameter["name"];
    if (name.starts_with(first))
      name = concat(any, "0-", run.shape.num_layers - 1, ".", name.substr(first.size()));
    else if (name.starts_with(any))
      continue;
    out += row(name, concat(numbers(parameter["shape"]), " ", slices_text(parameter)), kWidth);
  }
  return out;
}

/// Of the first ranks their part of bucket 0.
std::string shards_text(const json& shards) {
  std::string out = "shards: what a dp rank updates of bucket 0\n";
  for (std::size_t rank = 0; rank < std::min(kShown, shards.size()); ++rank) {
    const json& shard = shards[rank].front();
    const json& parts = shard["parameters"];
    std::string text = concat(shard["world"][0].get<std::int64_t>(), "-", shard["world"][1].get<std::int64_t>());
    if (parts.empty()) text += ", padding alone";
    const auto held = [](const json& part) {
      return concat(part["name"].get<std::string>(), " ", part["param"][0].get<std::int64_t>(), "-",
                    part["param"][1].get<std::int64_t>());
    };
    if (!parts.empty()) text += ": " + held(parts.front());
    if (parts.size() > 1) text += " … " + held(parts.back());
    out += row(concat("dp rank ", rank), text);
  }
  if (shards.size() > kShown) out += row("…", concat(shards.size(), " ranks"));
  return out;
}

std::string buffer_text(const json& buffers) {
  const auto size = [](const json& buffer) { return buffer["size"].get<std::int64_t>(); };
  const json& buffer = *std::max_element(buffers.begin(), buffers.end(),
                                         [&](const json& a, const json& b) { return size(a) < size(b); });
  const double bytes = buffer["element_bytes"];
  const json& buckets = buffer["buckets"];
  const SharedUnit unit(bytes * buffer["size"].get<double>());
  const std::size_t shown = std::min(2 * kShown, buckets.size());
  std::string rows;
  std::int64_t sum = 0;
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t held = unit.thousandths(bytes * static_cast<double>(end - begin));
    sum += held;
    return concat(begin, "-", end, ", ", unit.text(held), ", ");
  };
  for (std::size_t i = 0; i < shown; ++i) {
    const json &bucket = buckets[i], &names = bucket["parameters"];
    rows += row(concat("bucket ", i), concat(part(bucket["begin"], bucket["end"]), names.size(),
                                             " gradients: ", names.front().get<std::string>(),
                                             names.size() > 1 ? " … " + names.back().get<std::string>() : ""));
  }
  if (buckets.size() > shown)
    rows +=
        row("…", concat(part(buckets[shown]["begin"], buckets.back()["end"]), buckets.size() - shown, " more buckets"));
  std::string out = concat("gradient buffer of a rank", buffers.size() > 1 ? " (the largest): " : ": ", size(buffer),
                           " elements, ", unit.text(sum), ", filled from bucket 0 on\n", rows);
  if (buffer.contains("pool")) {
    const double pool = buffer["pool"]["size"], sums = buffer["owned"];
    out += row("there at once", concat(human_bytes(bytes * pool), ", in which buckets take turns, and ",
                                       human_bytes(bytes * sums), " of sums; stage 1 would hold ", unit.text(sum)));
  }
  if (buffer.contains("parameter_pool")) {
    const json& pool = buffer["parameter_pool"];
    const double element = pool["element_bytes"], own = buffer["owned"];
    out += row("parameters",
               concat(pool["units"].size(), " units, a layer each, take turns in ",
                      human_bytes(element * pool["size"].get<double>()), " together with ", human_bytes(element * own),
                      " of shards; whole they are ", human_bytes(element * buffer["size"].get<double>())));
  }
  return out + (buffer.contains("shards") ? shards_text(buffer["shards"]) : "");
}

std::string first_step_text(const json& step) {
  const auto microbatch = [](const json& samples) {
    const std::int64_t first = samples.front(), last = samples.back();
    return first == last ? concat("[", first, "]") : concat("[", first, "-", last, "]");
  };
  const json& samples = step["samples"];
  std::string out =
      concat("first step: numbers of its ", step["global_batch_size"].get<std::int64_t>(), " samples by microbatch\n");
  for (std::size_t rank = 0; rank < std::min(kShown, samples.size()); ++rank)
    out += row(concat("dp rank ", rank), beginning(samples[rank], kShown, microbatch));
  if (samples.size() > kShown) out += row("…", concat("dp ", samples.size()));
  return out;
}

/// Of the first of the ranks that hold most. `has_teacher`: distill.teacher names one, also where it is not counted.
std::string memory_text(const json& memory, const json& target, bool has_teacher) {
  const json& totals = memory["total"];
  const auto rank = static_cast<std::size_t>(std::max_element(totals.begin(), totals.end()) - totals.begin());
  const SharedUnit unit(totals[rank]);
  std::string out = concat("memory of rank ", rank, totals.size() > 1 ? " (no rank holds more)\n" : "\n");
  std::int64_t sum = 0;
  for (const std::string kind :
       {"parameters", "gradients", "optimizer_state", "packed_weights", "activations", "logits", "teacher"}) {
    if (!memory.contains(kind)) continue;
    const double bytes = memory[kind][rank];
    if (bytes == 0 && kind == "packed_weights") continue;
    const std::int64_t held = unit.thousandths(bytes);
    sum += held;
    const std::string processor = target["processor"];
    const std::string on = kind == "packed_weights" && !processor.empty()
                               ? concat(", on processors with ", processor, " (--processor)")
                               : "";
    out += row(kind, unit.text(held) + on);
  }
  if (has_teacher && !memory.contains("teacher"))
    out += row("teacher", "not counted: only training reads such a folder");
  return out + row("total", unit.text(sum));
}

std::string fp8_text(const json& all) {
  if (!all.contains("fp8")) return "";
  const json& fp8 = all["fp8"];
  const std::string products = concat("fp8 ", fp8["format"].get<std::string>(), ": products of ",
                                      fp8["linear_layers"].get<std::int64_t>(), " linear layers; ");
  const std::string bytes = human_bytes(fp8["state_bytes"]) + " of each rank's optimizer_state\n";
  if (fp8["state_bytes"] == 0) return concat(products, "scales of blocks are found in each, none is kept\n");
  if (fp8["recipe"] == "tensorwise") return concat(products, "scales of weights and the step's magnitudes are ", bytes);
  return concat(products, "their scales and magnitudes of ", fp8["history"].get<std::int64_t>(),
                fp8["history"] == 1 ? " step are " : " steps are ", bytes);
}

/// What nodes keep of checkpoints, by rank, if ranks write equal shares.
std::string kept_text(const json& all) {
  if (!all.contains("checkpoints_in_memory")) return "";
  const json& kept = all["checkpoints_in_memory"];
  const double checkpoint = kept["checkpoint_bytes"], share = checkpoint / all["world_size"].get<double>();
  const auto of = [&](const char* nodes) {
    const int times = kept[nodes];
    return concat(times, " x ", human_bytes(share), " = ", human_bytes(times * share));
  };
  return concat("checkpoints in memory: ", human_bytes(checkpoint), "; for each of its ranks a node keeps ",
                of("one_node"), ", of several nodes ", of("several_nodes"), "\n");
}

std::string layer_text(const json& layer) {
  if (layer.is_null()) return "";
  return concat("activations of a layer and microbatch: ", human_bytes(layer["bytes"]), "; ",
                human_bytes(layer["paper_bytes"]), " by Korthikanti et al. 2022, table 2\n");
}

std::string warnings_text(const json& warnings) {
  std::string out;
  for (const json& line : warnings) out += line.get<std::string>() + "\n";
  return out;
}

}  // namespace

std::string report_text(const ResolvedRun& run, std::string_view processor) {
  const json all = report(run, processor);
  return model_text(run, all) + step_text(run, all) + groups_text(run, all["groups"]) + sequence_text(run, all) +
         pipeline_text(run, all) + recomputed_text(all) + parameters_text(run, all["parameter_slices"]) +
         buffer_text(all["gradient_buffers"]) + first_step_text(all["first_step"]) +
         memory_text(all["memory_bytes"], all["target"], !run.config.distill.teacher.empty()) + fp8_text(all) +
         kept_text(all) + layer_text(all["layer_activations"]) + warnings_text(all["warnings"]);
}

}  // namespace megatron::plan
