// The adapters of an expert layer, by name: those that are trained, and those that are kept beside its weights.
#include <algorithm>
#include <utility>

#include "megatron/model/experts/expert_layer.h"

namespace megatron::model {

ExpertLayer::AdaptersOfLayer ExpertLayer::adapters_of(const FindParameter& find, const plan::LayerSpec& layer,
                                                      const plan::Lora& lora, std::uint64_t seed) const {
  std::vector<plan::Linear> fc1, fc2, shared;
  for (plan::Linear& linear : layer.branches.back().linears(layer.hidden)) {
    const std::int64_t expert = linear.expert - first_expert();
    if (linear.expert < 0 && linear.split != plan::Linear::Split::Whole)
      shared.push_back(std::move(linear));
    else if (linear.expert >= 0 && expert >= 0 && expert < local_experts())
      (linear.split == plan::Linear::Split::Inputs ? fc2 : fc1).push_back(std::move(linear));
  }
  for (auto* const experts : {&fc1, &fc2}) std::ranges::reverse(*experts);  // as their rows come
  const auto of = [&](const std::vector<plan::Linear>& linears, int ranks, int rank) {
    return ExpertAdapters::of(find, layer, linears, lora, seed, ranks, rank);
  };
  AdaptersOfLayer own{of(fc1, slices(), slice()), of(fc2, slices(), slice()), nullptr, nullptr};
  if (shared.empty()) return own;
  own.shared1 = of({shared.front()}, tp_.size(), tp_.rank());
  own.shared2 = of({shared.back()}, tp_.size(), tp_.rank());
  return own;
}

void ExpertLayer::adapt(const FindParameter& find, const plan::LayerSpec& layer, const plan::Lora& lora,
                        std::uint64_t seed) {
  AdaptersOfLayer own = adapters_of(find, layer, lora, seed);
  experts_.adapter1 = std::move(own.fc1);
  experts_.adapter2 = std::move(own.fc2);
  shared_.adapter1 = std::move(own.shared1);
  shared_.adapter2 = std::move(own.shared2);
}

void ExpertLayer::keep(const std::vector<Kept>& kept, const plan::LayerSpec& layer,
                       std::shared_ptr<const parallel::AdapterChoice> choice) {
  std::vector<AdaptersOfLayer> all;
  for (const Kept& one : kept) all.push_back(adapters_of(one.find, layer, one.lora, 0));
  const auto of = [&](ExpertAdaptersPtr AdaptersOfLayer::*linear) -> KeptExpertAdaptersPtr {
    std::vector<ExpertAdaptersPtr> own;
    for (const AdaptersOfLayer& one : all) own.push_back(one.*linear);
    if (std::ranges::none_of(own, [](const auto& adapter) { return adapter != nullptr; })) return nullptr;
    return std::make_shared<const KeptExpertAdapters>(std::move(own));
  };
  experts_.kept1 = of(&AdaptersOfLayer::fc1);
  experts_.kept2 = of(&AdaptersOfLayer::fc2);
  shared_.kept1 = of(&AdaptersOfLayer::shared1);
  shared_.kept2 = of(&AdaptersOfLayer::shared2);
  if (experts_.kept1 || experts_.kept2 || shared_.kept1 || shared_.kept2) choice_ = std::move(choice);
}

}  // namespace megatron::model
