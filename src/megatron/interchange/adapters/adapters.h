#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megatron/checkpoint/weights.h"
#include "megatron/config/model_config.h"
#include "megatron/config/run_config.h"
#include "megatron/families/hf_config.h"
#include "megatron/plan/parameters/adapters.h"

// Low-rank adapters in folders: a checkpoint of a run with lora.rank, or PEFT's (adapter_config.json,
// adapter_model.safetensors). As weights of a model they are those of their base with the adapters merged into them.
namespace megatron::interchange {

/// The matrices of adapters under our names (plan::adapter_name(), plan::magnitude_name()), whole.
struct OpenedAdapter {
  std::shared_ptr<const checkpoint::WeightSource> matrices;
  plan::Lora lora;  ///< as the folder says, without targets
};

/// What adapters are opened for: a matrix of PEFT's that belongs to several of our parts (queries, keys and values in
/// one) can be merged, but is no longer one where its parts are trained.
enum class AdapterUse : std::uint8_t { Merging, Training };

/// Whether `folder` holds adapters, without their base.
bool holds_adapter(const std::filesystem::path& folder);

/// The folder of the model that the adapters in `folder` belong to. Throws ConfigError where PEFT's names none that is
/// there.
std::string adapter_base(const std::filesystem::path& folder);

/// The adapters in `folder`, of layers of `model`, whose weights lie in the folder `base` (empty: in none). Throws
/// ConfigError naming file and field for what is damaged, unknown (biases, ranks by layer), or of other layers.
OpenedAdapter open_adapter(const std::filesystem::path& folder, const config::ModelConfig& model,
                           const std::filesystem::path& base, AdapterUse use);

/// The weights of `base` with those adapters added to them, and with lora.dora rows of their magnitudes.
class AdaptedWeights final : public checkpoint::WeightSource {
 public:
  AdaptedWeights(std::unique_ptr<const checkpoint::WeightSource> base, OpenedAdapter adapter, std::string base_folder,
                 const config::ModelConfig& model);

  std::string name() const override { return adapter_.matrices->name(); }
  std::vector<std::string> tensors() const override { return base_->tensors(); }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override { return base_->shape(tensor); }
  std::string dtype(const std::string& tensor) const override { return base_->dtype(tensor); }
  /// Sums in float32 (float64 into float64) and rounds once. With magnitudes reads whole rows, a few at a time.
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override;

  const OpenedAdapter& adapter() const { return adapter_; }
  const std::string& base_folder() const { return base_folder_; }

 private:
  struct Part {
    plan::ProjectionSlice rows;
    std::string a, b, magnitude;
    std::int64_t inputs = 0;
  };
  struct Matrices;  // of a part, once they are read
  /// The rows and columns of `box`, whole rows where there are magnitudes, in `type`.
  at::Tensor merged(const std::string& tensor, const checkpoint::Box& box, std::vector<Matrices>& matrices,
                    const at::TensorOptions& type) const;

  std::unique_ptr<const checkpoint::WeightSource> base_;
  OpenedAdapter adapter_;
  std::string base_folder_;
  std::map<std::string, std::vector<Part>> parts_;  ///< by the weight's name
};

/// The weights in `folder` of a model of that shape as a run knows them again, in whatever format: a digest of samples
/// of each, rounded to bf16.
std::string weights_digest(const std::filesystem::path& folder, const plan::ModelShape& shape);

/// The name, in a checkpoint's metadata, of what its run was trained with (train/resume/input_digests.h): a JSON object
/// whose "base" is the weights_digest() of what adapters are trained on.
inline constexpr const char* kInputs = "inputs";

/// The weights of `base_folder` with the adapters of `folder` merged. Throws ConfigError where the base is not there,
/// holds adapters itself or other weights than those that a run's adapters were trained on.
std::unique_ptr<checkpoint::WeightSource> open_adapted(const std::filesystem::path& folder,
                                                       const std::string& base_folder);

/// The adapters in `folder` for who keeps them beside the weights in `base_folder` (decision 145). Throws ConfigError
/// for what open_adapted() refuses. Of the weights reads the samples alone by which a run knows them again.
OpenedAdapter open_kept(const std::filesystem::path& folder, const std::string& base_folder);

/// A part of our layers as PEFT has it.
struct PeftPart {
  plan::ProjectionSlice part;
  std::string a, b, magnitude;  ///< our names of its matrices
  std::string module;           ///< theirs: "model.layers.0.self_attn.q_proj"
  bool transposed = false;
  std::vector<std::int64_t> rows = {};  ///< of their B and magnitude, where they are not all in order; else empty
};
/// Every part of the layers of a model, by the names of its family: the folder's, or one that holds it. Throws
/// ConfigError where no family of Hugging Face's holds the model.
std::vector<PeftPart> peft_parts(const families::FolderConfig& config);

}  // namespace megatron::interchange
