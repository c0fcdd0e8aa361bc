#pragma once
#include <algorithm>
#include <string>

#include "megatron/serve/tools/tool_syntax.h"

namespace megatron::serve {

/// The row of the table with that name, which is there.
inline const ToolSyntax& syntax_named(const std::string& name) {
  const auto all = tool_syntaxes();
  return *std::ranges::find(all, name, &ToolSyntax::name);
}

}  // namespace megatron::serve
