#pragma once
#include <functional>
#include <string>

#include "megatron/base/error.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {

/// What resolve() says of `config` once `change` is made; "no error".
inline std::string refusal_of(config::RunConfig config, const std::function<void(config::RunConfig&)>& change) {
  change(config);
  try {
    resolve(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace megatron::plan
