#pragma once
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace megatron::app {

/// An object as one line. Names of files and text that are not UTF-8 are shown with U+FFFD and end no job.
template <class Json>
std::string json_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

template <class Json>
void print_json(const Json& json) {
  std::fputs(json_line(json).c_str(), stdout);
}

}  // namespace megatron::app
