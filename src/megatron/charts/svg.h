#pragma once
#include <array>
#include <string>

// The pieces of an SVG file that pictures share.
namespace megatron::charts::svg {

using Rgb = std::array<int, 3>;  ///< 0..255

/// A length in pixels, to a hundredth, without trailing zeros.
std::string px(double value);

/// Text as XML holds it: UTF-8 (the rest becomes U+FFFD), no control characters.
std::string escaped(const std::string& text);

/// Pixels that no usual sans-serif font exceeds for `text` in a font of `size` pixels: by the wide DejaVu Sans, for
/// which pictures must leave room, as they do not say which font a viewer has.
double text_width(const std::string& text, double size, bool bold = false);

/// The text, or as much of its beginning, with "…", as text_width() allows in `width` pixels.
std::string shortened(const std::string& text, double width, double size, bool bold = false);

/// "#rrggbb".
std::string hex(const Rgb& rgb);

/// x, y: of the text's base line. `classes`: "" or the classes of the file's <style>.
std::string text_at(double x, double y, const std::string& classes, const std::string& text);

/// A rectangle, still open: the caller ends it with "/>" or with what it holds.
std::string box(double x, double y, double width, double height, const std::string& classes);

/// The file of that size with a white ground and `title`, the body being drawn on it; wider where a title of up to some
/// 120 letters needs that, a longer one is shortened. `definitions`: <style>, <defs>. The style must have classes d
/// (white) and h (title, bold, of 16 pixels).
std::string document(double width, double height, const std::string& definitions, const std::string& title,
                     double title_x, const std::string& body);

}  // namespace megatron::charts::svg
