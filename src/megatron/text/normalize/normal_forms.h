#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/normalize/aligned_text.h"
#include "megatron/text/pipeline.h"

// Unicode's normal forms (UAX #15), with the tables of Hugging Face tokenizers (make_normal_form_tables.py).
namespace megatron::text {

/// The characters of `text`, valid UTF-8, in a normal form, each with the old characters that it takes the place of.
std::vector<Change> normal_form(std::string_view text, const normalizer::UnicodeForm& form);

/// Whether the character is a mark, of any kind.
bool is_mark(std::uint32_t code_point);

/// Whether normal_form() could change `text`; false is certain, true is not.
bool may_change(std::string_view text, const normalizer::UnicodeForm& form);

}  // namespace megatron::text
