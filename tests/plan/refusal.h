#pragma once
#include <functional>
#include <string>

#include "megatron/base/error.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {

/// What resolve() says of `config`; "no error".
inline std::string refusal_of(const config::RunConfig& config, const Facts& facts = {}) {
  try {
    resolve(config, facts);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}
/// The same once `change` is made.
inline std::string refusal_of(config::RunConfig config, const std::function<void(config::RunConfig&)>& change) {
  change(config);
  return refusal_of(config);
}

}  // namespace megatron::plan
