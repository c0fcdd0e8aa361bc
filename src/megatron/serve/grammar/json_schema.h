#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "megatron/serve/api/api_error.h"
#include "megatron/serve/grammar/grammar.h"
#include "megatron/serve/grammar/grammar_builder.h"

namespace megatron::serve {

/// The texts that are JSON and satisfy a JSON Schema, as far as it says so by: type, enum, const, properties, required,
/// additionalProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format, minimum,
/// maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, anyOf, oneOf, allOf of one, $ref within the schema. Every
/// text of the grammar satisfies it (oneOf as anyOf). Properties come in the order in which they are listed, others
/// only where none are. White space is at most a line's end and its indentation. Beside enum and const stands at most a
/// type, beside anyOf, oneOf, allOf and $ref nothing, but for what has no effect on texts (title, …). Throws ApiError
/// 400, which names the keyword, for a schema that says more or is none.
Grammar grammar_of_schema(const nlohmann::ordered_json& schema);

/// grammar_of_schema() as rules, one for each schema, of a grammar that has others: whose maker asks at its end whether
/// a rule can begin with itself, or has no finite text. What is thrown is `named` of the schema's number and its error.
std::vector<std::int32_t> add_schemas(GrammarBuilder& grammar, std::span<const nlohmann::ordered_json* const> schemas,
                                      const std::function<ApiError(std::size_t, const ApiError&)>& named);

}  // namespace megatron::serve
