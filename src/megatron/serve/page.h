#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::serve {

/// The page at /: one HTML file with its script and style, which talks to this server alone.
std::string_view page();
/// What a browser may do with it.
std::vector<std::pair<std::string, std::string>> page_headers();

}  // namespace megatron::serve
