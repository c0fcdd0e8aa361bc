#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/tasks/windows.h"
#include "megatron/text/tokenizer.h"

namespace megatron::tasks {

/// Texts whose ending is scored given their beginning, as one row of ids and a window of it for each text.
class EvalTexts {
 public:
  /// `most`: tokens that a window may have, two or more.
  EvalTexts(text::Encoder encoder, std::int64_t most) : encoder_(std::move(encoder)), most_(most) {}

  /// The ids are those of the whole text; scored are those after what it has in common with the ids of `beginning`
  /// alone. A text of more than `most` tokens loses its first ones. Throws ConfigError where nothing stands before the
  /// ending, the ending has no token of its own, or leaves no room for any before it.
  void add(std::string_view beginning, std::string_view ending);

  const std::vector<std::int64_t>& ids() const { return ids_; }
  const std::vector<Window>& windows() const { return windows_; }
  /// How many texts have lost tokens.
  std::int64_t shortened() const { return shortened_; }

 private:
  text::Encoder encoder_;
  std::int64_t most_;
  std::vector<std::int64_t> ids_;
  std::vector<Window> windows_;
  std::int64_t shortened_ = 0;
  std::string text_;
  std::vector<std::int32_t> beginning_ids_, text_ids_;
};

}  // namespace megatron::tasks
