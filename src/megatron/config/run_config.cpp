#include "megatron/config/run_config.h"

namespace megatron::config {

RunConfig::RunConfig() = default;
RunConfig::RunConfig(const RunConfig&) = default;
RunConfig::RunConfig(RunConfig&&) noexcept = default;
RunConfig& RunConfig::operator=(const RunConfig&) = default;
RunConfig& RunConfig::operator=(RunConfig&&) noexcept = default;
RunConfig::~RunConfig() = default;

}  // namespace megatron::config
