#include "megatron/interchange/hugging_face/labels.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/interchange/formats.h"
#include "megatron/interchange/weights.h"

namespace megatron::interchange {
namespace {

constexpr const char* kHead = "task_head.";

class WithoutHead final : public checkpoint::WeightSource {
 public:
  explicit WithoutHead(std::unique_ptr<const checkpoint::WeightSource> all) : all_(std::move(all)) {}

  std::string name() const override { return all_->name(); }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names = all_->tensors();
    std::erase_if(names, [](const std::string& name) { return name.starts_with(kHead); });
    return names;
  }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override {
    return tensor.starts_with(kHead) ? nullptr : all_->shape(tensor);
  }
  std::string dtype(const std::string& tensor) const override { return all_->dtype(tensor); }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override {
    all_->read(tensor, box, into);
  }

 private:
  std::unique_ptr<const checkpoint::WeightSource> all_;
};

}  // namespace

std::string labels_text(const std::vector<std::string>& labels) { return nlohmann::json(labels).dump(); }

std::vector<std::string> labels_of(const std::filesystem::path& folder) {
  const auto& labels = format_of(folder).labels;
  return labels == nullptr ? std::vector<std::string>() : labels(folder);
}

bool has_other_head(const config::ModelConfig& theirs, const config::ModelConfig& ours) {
  if (theirs.head == "tokens" || ours.head == "tokens") return false;
  return theirs.head != ours.head || (ours.head == "classes" && theirs.num_classes != ours.num_classes);
}

std::unique_ptr<checkpoint::WeightSource> open_weights_for(const std::filesystem::path& folder,
                                                           const config::ModelConfig& model) {
  auto all = open_weights(folder);
  if (!has_other_head(model_config_of(folder), model)) return all;
  return std::make_unique<WithoutHead>(std::move(all));
}

}  // namespace megatron::interchange
