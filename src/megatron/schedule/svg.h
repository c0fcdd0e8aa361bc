#pragma once
#include <array>
#include <string>

// The pieces of an SVG file that pictures share.
namespace megatron::schedule::svg {

using Rgb = std::array<int, 3>;  ///< 0..255

/// A length in pixels, to a hundredth, without trailing zeros.
std::string px(double value);

/// Text as XML holds it: UTF-8 (the rest becomes U+FFFD), no control characters.
std::string escaped(const std::string& text);

/// "#rrggbb".
std::string hex(const Rgb& rgb);

/// x, y: of the text's base line. `classes`: "" or the classes of the file's <style>.
std::string text_at(double x, double y, const std::string& classes, const std::string& text);

/// A rectangle, still open: the caller ends it with "/>" or with what it holds.
std::string box(double x, double y, double width, double height, const std::string& classes);

/// The file of that size with a white ground and `title`, the body being drawn on it. `definitions`: <style>, <defs>.
/// The style must have classes d (white) and h (title).
std::string document(double width, double height, const std::string& definitions, const std::string& title,
                     double title_x, const std::string& body);

}  // namespace megatron::schedule::svg
