#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace megatron::generate {

/// Passes bytes on in whole UTF-8 characters: a token may end inside one. Bytes that can no longer become a character
/// are passed on as they are.
class Utf8Stream {
 public:
  explicit Utf8Stream(std::function<void(std::string_view)> out);
  void write(std::string_view bytes);
  /// Passes on what is left.
  void finish();

 private:
  std::function<void(std::string_view)> out_;
  std::string held_;
};

}  // namespace megatron::generate
