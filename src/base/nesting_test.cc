#include "base/nesting.h"

#include <gtest/gtest.h>

namespace fivefold {
namespace {

std::string repeated(std::string_view part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

// "a.a.a": `parts` of them.
std::string dotted(int parts) { return repeated("a.", parts - 1) + "a"; }

TEST(JsonNesting, IsCountedUpToTheLimit) {
  EXPECT_TRUE(check_json_nesting(repeated("[", 64) + repeated("]", 64), "f").ok());
  EXPECT_TRUE(check_json_nesting(repeated(R"({"a":)", 64) + "1" + repeated("}", 64), "f").ok());
  const Status status = check_json_nesting(repeated("[", 65), "f.json");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message(), "f.json: is nested deeper than 64 levels");
  EXPECT_FALSE(check_json_nesting(repeated(R"({"a":[)", 33), "f").ok());
}

TEST(JsonNesting, CountsWhatIsOpenAndNotWhatStandsSideBySideOrInStrings) {
  EXPECT_TRUE(check_json_nesting("[" + repeated("[],", 1000) + "[]]", "f").ok());
  EXPECT_TRUE(check_json_nesting("[\"" + repeated("[", 1000) + "\"]", "f").ok());
  // An escaped quote does not end a string, an escaped backslash before a quote does.
  EXPECT_TRUE(check_json_nesting(R"(["\")" + repeated("[", 1000) + "\"]", "f").ok());
  EXPECT_FALSE(check_json_nesting(R"(["\\",)" + repeated("[", 1000), "f").ok());
}

TEST(TomlNesting, CountsValuesAndPartsOfKeys) {
  EXPECT_TRUE(check_toml_nesting("x = " + repeated("[", 32) + repeated("]", 32), "f").ok());
  EXPECT_TRUE(check_toml_nesting(dotted(32) + " = 1\n[" + dotted(32) + "]\n", "f").ok());
  const Status values = check_toml_nesting("# note\nx = " + repeated("{a = ", 33), "f.toml");
  ASSERT_FALSE(values.ok());
  EXPECT_EQ(values.error().message(), "f.toml:2: is nested deeper than 32 levels");
  EXPECT_FALSE(check_toml_nesting(dotted(33) + " = 1\n", "f").ok());
  EXPECT_FALSE(check_toml_nesting("[[" + dotted(33) + "]]\n", "f").ok());
  EXPECT_FALSE(check_toml_nesting("x = {" + dotted(33) + " = 1}\n", "f").ok());
  EXPECT_FALSE(check_toml_nesting(repeated("\"a\" . ", 32) + "'a' = 1\n", "f").ok());
}

TEST(TomlNesting, LeavesValuesStringsAndCommentsAlone) {
  EXPECT_TRUE(check_toml_nesting("x = [" + repeated("1.5, ", 1000) + "]\n", "f").ok());
  EXPECT_TRUE(check_toml_nesting(repeated("x.y = 1\n", 1000), "f").ok());
  const std::string deep = repeated(".[{", 100);
  EXPECT_TRUE(check_toml_nesting("# it's " + deep + "\n", "f").ok());
  EXPECT_TRUE(check_toml_nesting("x = \"\\\"" + deep + "\"\n", "f").ok());
  EXPECT_TRUE(check_toml_nesting("x = '\\" + deep + "'\n", "f").ok());
  EXPECT_TRUE(check_toml_nesting("x = \"\"\"\n\"\"" + deep + "\n\"\"\"\n", "f").ok());
  EXPECT_TRUE(check_toml_nesting("x = '''\n''" + deep + "\n'''\n", "f").ok());
}

TEST(TomlNesting, GoesOnBehindStrings) {
  const std::string deep = "y = " + repeated("[", 33);
  for (const std::string text :
       {"\"\"", "''", "\"a\\\\\"", "'a\\'", "\"\"\"a\"\"\"", "\"\"\"a\"\"\"\"\"", "'''a''''", "# \"\n1"})
    EXPECT_FALSE(check_toml_nesting("x = " + text + "\n" + deep, "f").ok()) << text;
}

}  // namespace
}  // namespace fivefold
