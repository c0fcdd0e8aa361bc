#include "megatron/interchange/megatron_lm/dist/buffers.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/interchange/megatron_lm/megatron_names.h"

namespace megatron::interchange {
namespace {

constexpr std::string_view kBuffers = "optimizer.distributed.";
/// Several optimizers have numbers. With expert parallelism the one of experts is the second of two.
constexpr std::string_view kNumbered = "chained_", kDense = "chained_0.", kExperts = "chained_1.",
                           kFurther = "chained_2.";
constexpr std::int64_t kParameterAlignment = 64;

using BufferedPlaces = std::map<std::string, DcpSource::TensorLocation>;

/// In which order Megatron-Core registers the parts of a layer, and what follows the layers.
struct Part {
  std::string_view name;
  enum class With : std::uint8_t { Both, OwnNorms, FusedNorms } with = With::Both;
};
constexpr Part kParts[] = {{"input_layernorm.", Part::With::OwnNorms},
                           {"self_attention.linear_proj."},
                           {"input_layernorm.", Part::With::FusedNorms},
                           {"self_attention.linear_qkv."},
                           {"self_attention.q_layernorm."},
                           {"self_attention.k_layernorm."},
                           {"pre_cross_attn_layernorm."},
                           {"cross_attention.linear_proj."},
                           {"cross_attention.linear_q."},
                           {"cross_attention.linear_kv."},
                           {"pre_mlp_layernorm."}};
/// The parts of a layer whose attention is by way of latents; norms in front of attention are then never fused.
constexpr Part kLatentParts[] = {{"input_layernorm."},
                                 {"self_attention.linear_proj."},
                                 {"self_attention.linear_q_proj."},
                                 {"self_attention.linear_q_down_proj."},
                                 {"self_attention.q_layernorm.", Part::With::FusedNorms},
                                 {"self_attention.linear_q_up_proj."},
                                 {"self_attention.linear_kv_down_proj."},
                                 {"self_attention.kv_layernorm.", Part::With::FusedNorms},
                                 {"self_attention.linear_kv_up_proj."},
                                 {"self_attention.q_layernorm.", Part::With::OwnNorms},
                                 {"self_attention.kv_layernorm.", Part::With::OwnNorms},
                                 {"pre_mlp_layernorm."}};
/// Behind these.
constexpr Part kMlpParts[] = {{"mlp.router."},
                              {"mlp.experts."},
                              {"mlp.shared_experts.gate."},
                              {"mlp.shared_experts.linear_fc1."},
                              {"mlp.shared_experts.linear_fc2."},
                              {"mlp.linear_fc1."},
                              {"mlp.linear_fc2."}};
constexpr Part kAfterLayers[] = {{"lm_head."}, {"embedding."}, {"output_layer."}, {"binary_head."}, {"pooler."}};

/// The place of what has this name, behind all others where it has none.
std::size_t index_in(std::span<const Part> table, std::string_view name, bool fused_norms) {
  const Part::With other = fused_norms ? Part::With::OwnNorms : Part::With::FusedNorms;
  return static_cast<std::size_t>(
      std::ranges::find_if(table, [&](const Part& part) { return part.with != other && name.starts_with(part.name); }) -
      table.begin());
}

/// What the order of a rank's parameters is sorted by: before, in and after the layers; the layer; the part; of experts
/// the layer within each. The norm that ends an encoder whose decoder follows is behind its last layer's parts.
std::array<std::size_t, 4> key_of(const plan::ParameterSpec& spec, bool latents, const BufferLayout& layout) {
  constexpr std::size_t kMlp = std::max(std::size(kParts), std::size(kLatentParts)), kEnd = kMlp + std::size(kMlpParts);
  const bool fused = layout.fused_norms;
  const auto depth = static_cast<std::size_t>(spec.depth);
  const std::size_t layers = spec.name.find(".layers.");
  if (layers != std::string::npos) {
    const std::size_t dot = spec.name.find('.', layers + 8);
    const std::string_view part = std::string_view(spec.name).substr(dot + 1);
    if (part.starts_with("mlp.")) {
      const bool second = layout.grouped_experts && spec.of_expert && part.find(".linear_fc2.") != part.npos;
      return {1, depth, kMlp + index_in(kMlpParts, part, fused), second ? std::size_t{1} : std::size_t{0}};
    }
    return {1, depth, latents ? index_in(kLatentParts, part, fused) : index_in(kParts, part, fused), 0};
  }
  if (spec.name.starts_with("embedding.") && !spec.shared_copy) return {0, 0, 0, 0};
  if (spec.name.find("final_layernorm.") != std::string::npos) return {1, depth, kEnd, 0};
  return {2, 0, index_in(kAfterLayers, spec.name, fused), 0};
}

/// One of the optimizers of a run: of which parameters, and over how many ranks of a stage these are spread.
struct BufferedOptimizer {
  std::string_view prefix = "";  ///< of its tensors' names
  bool dense = true, experts = true;
  int tp = 1, ep = 1;

  bool has(const plan::ParameterSpec& spec) const {
    return !is_expert_bias(spec.name) && (spec.of_expert ? experts : dense);
  }
};

/// Splits `specs` by the rank of expert parallelism that has them; one share where the optimizer has no such ranks.
std::vector<std::vector<plan::ParameterSpec>> shares_of(std::vector<plan::ParameterSpec> specs,
                                                        const BufferedOptimizer& optimizer, std::int64_t experts) {
  constexpr std::string_view kEach = ".local_experts.";
  std::vector<std::vector<plan::ParameterSpec>> shares(static_cast<std::size_t>(optimizer.ep));
  for (plan::ParameterSpec& spec : specs) {
    if (!optimizer.has(spec)) continue;
    std::size_t rank = 0;
    if (optimizer.ep > 1) {
      const std::int64_t expert = std::stoll(spec.name.substr(spec.name.find(kEach) + kEach.size()));
      rank = static_cast<std::size_t>(expert / (experts / optimizer.ep));
    }
    shares[rank].push_back(std::move(spec));
  }
  return shares;
}

/// The first tensor whose name begins so; "" where there is none.
std::string first_named(const DcpFolder& folder, std::string_view prefix) {
  const auto& tensors = folder.metadata().tensors;
  const auto found = tensors.lower_bound(std::string(prefix));
  return found != tensors.end() && found->first.starts_with(prefix) ? found->first : "";
}

std::vector<BufferedOptimizer> optimizers_of(const DcpFolder& folder, const BufferLayout& layout) {
  const bool two = layout.ep > 1;
  for (const std::string_view others : {two ? kBuffers : kNumbered, kFurther})
    if (const std::string name = first_named(folder, others); !name.empty())
      throw ConfigError(rule_got_fix(concat(folder.name(), ": the optimizer's state by buffer must be of ",
                                            two ? "two optimizers" : "one optimizer",
                                            " with args.expert_model_parallel_size ", layout.ep, kAsSaved),
                                     concat("\"", printable(name), "\"")));
  if (!two) return {{.tp = layout.tp}};
  return {{.prefix = kDense, .experts = false, .tp = layout.tp},
          {.prefix = kExperts, .dense = false, .tp = layout.etp, .ep = layout.ep}};
}

class Buckets {
 public:
  Buckets(const DcpFolder& folder, std::string_view optimizer, std::int64_t group, int buffer, std::string theirs)
      : folder_(folder), theirs_(std::move(theirs)) {
    const std::string begin = concat(optimizer, kBuffers, "dp_group_idx_", group, ".gbuf_idx_", buffer, ".dtype_");
    const auto& tensors = folder.metadata().tensors;
    const auto first = tensors.lower_bound(begin);
    const std::size_t end = first == tensors.end() ? std::string::npos : first->first.find(".bucket_idx_");
    if (end == std::string::npos || !first->first.starts_with(begin))
      refuse(concat("buffer ", buffer, " of model-parallel rank ", group), "none");
    prefix_ = first->first.substr(0, end) + ".bucket_idx_";
    for (auto other = first; other != tensors.end() && other->first.starts_with(begin); ++other)
      if (!other->first.starts_with(prefix_)) refuse("one buffer of each stage", "several data types");
    open();
  }

  /// Where the next parameter of so many elements begins.
  std::pair<const DcpTensor*, std::int64_t> take(std::int64_t elements) {
    if (at_ == size()) {
      ++number_;
      open();
    }
    const std::int64_t begin = (at_ + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
    if (elements > size() - begin) refuse("buckets that end with a parameter", "one that ends within it");
    at_ = begin + elements;
    return {bucket_, begin};
  }
  std::string folder() const { return folder_.name(); }
  void finish() const {
    if (at_ != size() || folder_.find(name(number_ + 1)) != nullptr)
      refuse("buckets of the parameters alone", "longer ones");
  }

 private:
  [[noreturn]] void refuse(const std::string& rule, const std::string& got) const {
    throw ConfigError(
        rule_got_fix(concat(folder_.name(), ": the optimizer's state by buffer must have ", rule, "."), got));
  }
  std::string name(int number) const { return concat(prefix_, number, ".", theirs_); }
  std::int64_t size() const { return bucket_->shape[0]; }
  void open() {
    bucket_ = folder_.find(name(number_));
    if (bucket_ == nullptr || bucket_->shape.size() != 1)
      refuse(concat("\"", theirs_, "\" of every bucket"), "not of one");
    at_ = 0;
  }

  const DcpFolder& folder_;
  std::string theirs_, prefix_;
  int number_ = 0;
  const DcpTensor* bucket_ = nullptr;
  std::int64_t at_ = 0;
};

/// Adds where `buckets` of one rank have the parameters `specs`, which come in any order.
void add_rank(std::vector<plan::ParameterSpec> specs, const plan::ModelShape& shape, const BufferLayout& layout,
              bool first_of_tp, Buckets buckets, BufferedPlaces& places) {
  std::ranges::stable_sort(
      specs, {}, [&](const plan::ParameterSpec& spec) { return key_of(spec, shape.latents.has_value(), layout); });
  for (auto spec = specs.rbegin(); spec != specs.rend(); ++spec) {
    const auto [bucket, begin] = buckets.take(spec->local_size());
    if (spec->has_copies())
      throw ConfigError(rule_got_fix(concat(buckets.folder(),
                                            ": args.num_query_groups must divide by the ranks of tensor "
                                            "parallelism."),
                                     concat(shape.groups(), " and ", layout.tp)));
    if (spec->shared_copy || (spec->replicated() && !first_of_tp)) continue;
    DcpSource::TensorLocation& place = places[spec->name];
    place.tensor = bucket;
    place.shape = checkpoint::true_shape(*spec, shape);
    place.flat.push_back({bucket, begin, *spec});
  }
  buckets.finish();
}

/// The parameters of `stage` on one rank of those that the optimizer counts by tp, its `slice`. Experts are cut by etp
/// and all else by tp. What the optimizer does not update is cut as on the first rank, and not used: the size of an
/// expert need not divide by tp, nor that of the rest by etp.
std::vector<plan::ParameterSpec> stage_parameters(const plan::ModelShape& shape, const BufferLayout& layout,
                                                  const BufferedOptimizer& optimizer, int slice,
                                                  const plan::StageSpec& stage) {
  if (layout.ep == 1) return plan::model_parameters(shape, layout.tp, slice, {stage});
  return plan::model_parameters(shape, layout.tp, optimizer.dense ? slice : 0, {stage},
                                {.etp = layout.etp, .etp_rank = optimizer.experts ? slice : 0});
}

/// The places of what an optimizer has. Its ranks are counted by tp within ep within pp.
void add_optimizer(const DcpFolder& folder, const plan::ModelShape& shape, const BufferLayout& layout,
                   const BufferedOptimizer& optimizer, const std::string& theirs, BufferedPlaces& places) {
  std::vector<int> buffers(static_cast<std::size_t>(layout.pp));  // of each pipeline rank
  for (std::size_t stage = 0; stage < layout.stages.size(); ++stage) {
    const std::size_t pp = stage % buffers.size();
    bool used = true;  // a stage of which the optimizer has nothing has no buffer
    for (int tp = 0; tp < optimizer.tp && used; ++tp) {
      auto shares = shares_of(stage_parameters(shape, layout, optimizer, tp, layout.stages[stage]), optimizer,
                              shape.experts ? shape.experts->count : 0);
      used = !shares.front().empty();
      for (std::size_t ep = 0; ep < shares.size() && used; ++ep) {
        const std::size_t group = (pp * shares.size() + ep) * static_cast<std::size_t>(optimizer.tp);
        add_rank(std::move(shares[ep]), shape, layout, tp == 0,
                 Buckets(folder, optimizer.prefix, static_cast<std::int64_t>(group) + tp, buffers[pp], theirs), places);
      }
    }
    if (used) ++buffers[pp];
  }
}

}  // namespace

bool has_buffers(const DcpFolder& folder) {
  return !first_named(folder, kBuffers).empty() || !first_named(folder, kNumbered).empty();
}

std::map<std::string, DcpSource::TensorLocation> buffer_places(const DcpFolder& folder, const plan::ModelShape& shape,
                                                               const BufferLayout& layout, const std::string& theirs) {
  BufferedPlaces places;
  for (const BufferedOptimizer& optimizer : optimizers_of(folder, layout))
    add_optimizer(folder, shape, layout, optimizer, theirs, places);
  return places;
}

}  // namespace megatron::interchange
