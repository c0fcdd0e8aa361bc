#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "app/print.h"

namespace megatron::app {

/// An object as one line. Names of files and text that are not UTF-8 are shown with U+FFFD and end no job.
template <class Json>
std::string json_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

template <class Json>
void print_json(const Json& json) {
  print_text(json_line(json));
}

}  // namespace megatron::app
