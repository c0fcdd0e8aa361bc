#pragma once
#include <string>

#include "megatron/base/files/file.h"
#include "megatron/plan/cost/hardware.h"

namespace megatron::plan {

inline Hardware load_hardware(const std::string& path) { return parse_hardware(read_file(path), path); }

}  // namespace megatron::plan
