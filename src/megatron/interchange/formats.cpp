#include "megatron/interchange/formats.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <system_error>

#include "megatron/base/error.h"

namespace megatron::interchange {

namespace fs = std::filesystem;

// Each in the file of its format.
WeightFormat native_format();
WeightFormat hugging_face_format();
WeightFormat megatron_format();
WeightFormat torch_dist_format();
WeightFormat gguf_format();
WeightFormat peft_format();

namespace {

/// Of a folder that nobody has named: damage in it is not to be reported, nor that it may not be entered.
bool holds_weights(const fs::path& folder) {
  try {
    return find_format(folder) != nullptr;
  } catch (const ConfigError&) {
    return false;
  } catch (const fs::filesystem_error&) {
    return false;
  }
}

/// What to name instead of `folder`, which is there and holds no weights.
std::string another_folder(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    const fs::path beside = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
    if (holds_weights(beside)) return beside.string();
    return folder.extension() == ".gguf" ? "copy the file again: a GGUF file begins with GGUF" : "name a folder";
  }
  std::string inside;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, fs::directory_options::skip_permission_denied))
    if (std::error_code ignored; entry.is_directory(ignored) && holds_weights(entry.path()))
      inside = std::max(inside, entry.path().string());
  if (!inside.empty()) return inside;
  if (fs::exists(folder / "recipe.toml"))
    return "let the run save first: it does so at its end, and each checkpoint.save_interval steps";
  return "name the folder that megatron train has written (its --train.out), or one as it was downloaded";
}

}  // namespace

std::span<const WeightFormat> weight_formats() {
  static const std::array formats = {native_format(),     hugging_face_format(), megatron_format(),
                                     torch_dist_format(), gguf_format(),         peft_format()};
  return formats;
}

const WeightFormat* find_format(const fs::path& folder) {
  // Ours last: Megatron-LM's folders of iterations look like them. Of Megatron-LM's formats the newer one first.
  for (const WeightFormat& format : weight_formats() | std::views::reverse)
    if (format.detect != nullptr && format.detect(folder)) return &format;
  return nullptr;
}

std::optional<TrainingState> training_state_of(const fs::path& folder, bool with_optimizer) {
  const WeightFormat& format = format_of(folder);
  return format.training == nullptr ? std::nullopt : format.training(folder, with_optimizer);
}

const WeightFormat& format_of(const fs::path& folder) {
  if (const WeightFormat* format = find_format(folder)) return *format;
  throw ConfigError(fs::exists(folder) ? families::no_weights(folder, another_folder(folder))
                                       : families::no_weights(folder));
}

}  // namespace megatron::interchange
