#include "report/html/html_text.hpp"

#include <fmt/format.h>

#include "core/readable.hpp"

namespace glu_ckpt {

std::string html(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string html_name(std::string_view name) { return "<code>" + html(name) + "</code>"; }

std::string table_row(std::string_view heading, const std::vector<std::string>& cells, std::string_view attributes) {
  std::string row = fmt::format("<tr{}{}><th scope=\"row\">", attributes.empty() ? "" : " ", attributes);
  row += heading;
  row += "</th>";
  for (const std::string& cell : cells) row += "<td>" + cell + "</td>";
  return row + "</tr>\n";
}

std::string table(std::string_view caption, const std::vector<std::string>& headings, const std::string& rows,
                  std::string_view css_class) {
  std::string text = "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"";
  text += caption;
  text += "\"><table class=\"";
  text += css_class;
  text += "\"><caption>";
  text += caption;
  text += "</caption>\n<thead><tr>";
  for (const std::string& heading : headings) text += "<th scope=\"col\">" + heading + "</th>";
  return text + "</tr></thead>\n<tbody>\n" + rows + "</tbody></table></div>\n";
}

}  // namespace glu_ckpt
