#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "megatron/serve/api/request.h"
#include "megatron/serve/api/request_fields.h"

// What a chat's request says: its messages and its tools.
namespace megatron::serve {

/// `messages`. Throws ApiError 400, which names the path of the field: a tool's message must name a call before it.
std::vector<text::ChatMessage> messages_of(RequestFields& fields, const RequestLimits& limits);

/// `tools`, `tool_choice` and `parallel_tool_calls`. `body`: the whole request, `whole` its value, whose fields these
/// are. Throws as messages_of().
ToolUse tools_of(RequestFields& fields, std::string_view body, const nlohmann::json& whole,
                 const RequestLimits& limits);

}  // namespace megatron::serve
