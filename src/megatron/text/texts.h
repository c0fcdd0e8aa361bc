#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/tokenizer.h"

namespace megatron::text {

/// Those of `ids` that have a text: not the `ends`, nor ids that a model has and its tokenizer has not.
std::vector<std::int32_t> ids_with_text(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                                        std::span<const std::int64_t> ends);

/// What the tokenizer's template sets before a text (<s>), where `ids` do not begin with it already: what models that
/// were trained with such a tokenizer read first.
std::vector<std::int32_t> opening_of(const Tokenizer& tokenizer, std::span<const std::int32_t> ids);

/// How many bytes `text` has before it leaves `other`; of the character in which it does, none.
std::size_t common_characters(std::string_view other, std::string_view text);

/// What `added` adds to the text of `prompt`: the text of both, from where it leaves that of the prompt alone. So a
/// space between the two is kept, and a character that the prompt left incomplete is there as a whole. All ids must be
/// the tokenizer's.
std::string text_after(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                       std::span<const std::int32_t> added);

}  // namespace megatron::text
