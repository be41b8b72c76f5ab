// The tests that may follow `is`.
#include <algorithm>

#include "text/jinja/callable.h"
#include "text/jinja/runtime.h"
#include "text/jinja/text_functions.h"

namespace quire::jinja {
namespace {

template <class Predicate>
Value check(Args& args, Predicate&& p) {
  args.bind({}, 0);
  return Value(p());
}

template <Compare how>
Value comparison(Runtime&, const Value& v, Args& args) {
  args.bind({"other"}, 1);
  return Value(compare(how, v, *args[0]));
}

Value undefined_or_text_case(const Value& v, Args& args, Case wanted) {
  args.bind({}, 0);
  const Str text = to_str(v);
  return Value(change_case(text, wanted).text() == text.text() &&
               change_case(text, wanted == Case::upper ? Case::lower : Case::upper).text() !=
                   text.text());
}

bool is_sequence(const Value& v) {
  return v.is_undefined() || v.str() || v.dict() || (v.seq() && v.seq()->kind <= SeqKind::range);
}

bool leaves(const Value& v, const Value& by, Int remainder) {
  return equals(arithmetic(Op::mod, v, by), Value(remainder));
}

constexpr Named kTests[] = {
    {"defined",
     [](Runtime&, const Value& v, Args& a) { return check(a, [&] { return !v.is_undefined(); }); }},
    {"undefined",
     [](Runtime&, const Value& v, Args& a) { return check(a, [&] { return v.is_undefined(); }); }},
    {"none",
     [](Runtime&, const Value& v, Args& a) { return check(a, [&] { return v.is_none(); }); }},
    {"string", [](Runtime&, const Value& v,
                  Args& a) { return check(a, [&] { return v.str() != nullptr; }); }},
    {"mapping", [](Runtime&, const Value& v,
                   Args& a) { return check(a, [&] { return v.dict() != nullptr; }); }},
    {"iterable",
     [](Runtime&, const Value& v, Args& a) {
       return check(a, [&] {
         return v.is_undefined() || v.str() || v.seq() || v.dict() || v.as<LoopRef>();
       });
     }},
    {"sequence",
     [](Runtime&, const Value& v, Args& a) { return check(a, [&] { return is_sequence(v); }); }},
    {"number",
     [](Runtime&, const Value& v, Args& a) { return check(a, [&] { return is_number(v); }); }},
    {"integer", [](Runtime&, const Value& v,
                   Args& a) { return check(a, [&] { return v.as<Int>() != nullptr; }); }},
    {"float", [](Runtime&, const Value& v,
                 Args& a) { return check(a, [&] { return v.as<double>() != nullptr; }); }},
    {"boolean", [](Runtime&, const Value& v,
                   Args& a) { return check(a, [&] { return v.as<bool>() != nullptr; }); }},
    {"true", [](Runtime&, const Value& v,
                Args& a) { return check(a, [&] { return v.as<bool>() && *v.as<bool>(); }); }},
    {"false", [](Runtime&, const Value& v,
                 Args& a) { return check(a, [&] { return v.as<bool>() && !*v.as<bool>(); }); }},
    {"callable",
     [](Runtime&, const Value& v, Args& a) {
       return check(a, [&] { return v.as<CallableRef>() || v.as<LoopRef>() || v.is_undefined(); });
     }},
    {"odd", [](Runtime&, const Value& v,
               Args& a) { return check(a, [&] { return leaves(v, Value(Int{2}), 1); }); }},
    {"even", [](Runtime&, const Value& v,
                Args& a) { return check(a, [&] { return leaves(v, Value(Int{2}), 0); }); }},
    {"divisibleby",
     [](Runtime&, const Value& v, Args& a) {
       a.bind({"num"}, 1);
       return Value(leaves(v, *a[0], 0));
     }},
    {"upper",
     [](Runtime&, const Value& v, Args& a) { return undefined_or_text_case(v, a, Case::upper); }},
    {"lower",
     [](Runtime&, const Value& v, Args& a) { return undefined_or_text_case(v, a, Case::lower); }},
    {"sameas",
     [](Runtime&, const Value& v, Args& a) {
       a.bind({"other"}, 1);
       return Value(v.rep.index() == a[0]->rep.index() && equals(v, *a[0]));
     }},
    {"in",
     [](Runtime&, const Value& v, Args& a) {
       a.bind({"seq"}, 1);
       return Value(contains(*a[0], v));
     }},
    {"filter",
     [](Runtime&, const Value& v, Args& a) {
       return check(a, [&] { return v.str() && find_filter(v.str()->text()); });
     }},
    {"test",
     [](Runtime&, const Value& v, Args& a) {
       return check(a, [&] { return v.str() && find_test(v.str()->text()); });
     }},
    {"escaped", [](Runtime&, const Value& v,
                   Args& a) { return check(a, [&] { return v.str() && v.str()->markup; }); }},
    {"eq", comparison<Compare::eq>},
    {"equalto", comparison<Compare::eq>},
    {"==", comparison<Compare::eq>},
    {"ne", comparison<Compare::ne>},
    {"!=", comparison<Compare::ne>},
    {"lt", comparison<Compare::lt>},
    {"lessthan", comparison<Compare::lt>},
    {"<", comparison<Compare::lt>},
    {"le", comparison<Compare::le>},
    {"<=", comparison<Compare::le>},
    {"gt", comparison<Compare::gt>},
    {"greaterthan", comparison<Compare::gt>},
    {">", comparison<Compare::gt>},
    {"ge", comparison<Compare::ge>},
    {">=", comparison<Compare::ge>},
};

}  // namespace

const Function* find_test(std::string_view name) { return find_named(kTests, name); }

}  // namespace quire::jinja
