#include "megatron/config/tables/renamed.h"

namespace megatron::config {

Renamed renamed(const std::string& path, const std::string& value) {
  if (path != "model.gelu") return {};
  return {"model.activation", value == "tanh" ? "gelu_tanh" : value == "erf" ? "gelu" : ""};
}

}  // namespace megatron::config
