#pragma GCC system_header  // include_next is g++'s and clang's own
#pragma once
#include_next <nlohmann/json.hpp>
#include <string>
#include <vector>

// Values of JSON and what reads and writes them are compiled once, in base/text/json_templates.cpp, and not in each of
// a hundred sources.
#define MEGATRON_JSON_TEMPLATES(declared)                                                                  \
  declared class nlohmann::basic_json<>;                                                                   \
  declared class nlohmann::basic_json<nlohmann::ordered_map>;                                              \
  declared class std::vector<nlohmann::json>;                                                              \
  declared class std::vector<nlohmann::ordered_json>;                                                      \
  declared class nlohmann::detail::serializer<nlohmann::json>;                                             \
  declared class nlohmann::detail::serializer<nlohmann::ordered_json>;                                     \
  declared class nlohmann::detail::lexer<nlohmann::json, megatron::CharactersOfString>;                    \
  declared class nlohmann::detail::lexer<nlohmann::ordered_json, megatron::CharactersOfString>;            \
  declared class nlohmann::detail::parser<nlohmann::json, megatron::CharactersOfString>;                   \
  declared class nlohmann::detail::parser<nlohmann::ordered_json, megatron::CharactersOfString>;

namespace megatron {
using CharactersOfString = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
}
MEGATRON_JSON_TEMPLATES(extern template)
