#pragma once
/// Text inside of HTML.

#include <string>
#include <string_view>
#include <vector>

namespace glu_ckpt {

/// `text` as HTML shows it, between tags and inside of quoted attributes. Control characters are written as \xNN.
std::string html(std::string_view text);

/// A name out of a file, which may be in any script: it does not turn the text around it.
std::string html_name(std::string_view name);

/// "<tr>" with a heading and cells, which are HTML already, as are the attributes of the row.
std::string table_row(std::string_view heading, const std::vector<std::string>& cells,
                      std::string_view attributes = {});

/// A table with a caption and headings of its columns; all are HTML already. It is a region of its own, which the
/// keyboard scrolls where it is wider than the page. Cells of the class "numbers" are not broken into
/// lines; of "silent" tables the caption is for screen readers alone.
std::string table(std::string_view caption, const std::vector<std::string>& headings, const std::string& rows,
                  std::string_view css_class = "words");

/// The style sheet of the page.
std::string_view page_style();

}  // namespace glu_ckpt
