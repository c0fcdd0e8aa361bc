#pragma once
#include <nlohmann/json_fwd.hpp>

#include "megatron/serve/api/request.h"
#include "megatron/serve/grammar/grammar.h"
#include "megatron/serve/grammar/token_trie.h"
#include "megatron/serve/tools/tool_syntax.h"

namespace megatron::serve {

/// Whether answers must be kept within tool_grammar(): a call is asked for, a tool is strict, or what is no call has a
/// schema.
bool needs_tool_grammar(const ToolUse& use, bool has_schema);

/// The answers to a request with tools, whose calls ToolCallParser finds. `schema`: of answers that are no calls, or
/// null.
///   Required, Function   calls and nothing else; of a named function one
///   Auto with a schema   either calls or a text of the schema
///   Auto                 any text, in which an opening is followed by a call; without an opening (ToolSyntax) a text
///                        that begins with { is a call
/// With Required and Function an answer may, or with Thinking::Begun does, begin with what the model thinks, in which
/// no opening is; not with a syntax without openings, whose calls stand at the beginning. Arguments obey the schemas of
/// their tools; with Auto those of tools that are not strict are any object. Tokens of `trie` that are special write
/// openings and closings. Throws ApiError 400, which names the path of the schema at fault, as grammar_of_schema()
/// does.
Grammar tool_grammar(const ToolSyntax& syntax, const ToolUse& use, const nlohmann::ordered_json* schema,
                     const TokenTrie& trie, Thinking thinking = Thinking::None);

}  // namespace megatron::serve
