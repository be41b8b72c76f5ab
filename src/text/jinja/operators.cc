// Python's operators on values.
#include <algorithm>
#include <cmath>

#include "text/jinja/runtime.h"
#include "text/jinja/text_functions.h"
#include "text/jinja/unicode.h"

namespace quire::jinja {
namespace {

[[noreturn]] void fail_operands(std::string_view op, const Value& a, const Value& b) {
  if (const auto* u = a.as<Undefined>()) fail_undefined(*u);
  if (const auto* u = b.as<Undefined>()) fail_undefined(*u);
  fail("unsupported operand types for " + std::string(op) + ": '" + std::string(type_name(a)) +
       "' and '" + std::string(type_name(b)) + "'");
}

[[noreturn]] void fail_overflow() { fail_unsupported("integers beyond 127 bits"); }

Int floor_div(Int a, Int b) {
  const Int q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

Value int_arithmetic(Op op, Int a, Int b) {
  Int out = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &out)) fail_overflow();
      return Value(out);
    case Op::sub:
      if (__builtin_sub_overflow(a, b, &out)) fail_overflow();
      return Value(out);
    case Op::mul:
      if (__builtin_mul_overflow(a, b, &out)) fail_overflow();
      return Value(out);
    case Op::div:
      if (b == 0) fail("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Op::floordiv:
    case Op::mod:
      if (b == 0) fail("integer division or modulo by zero");
      if (b == -1) {  // the only divisor that can overflow
        if (op == Op::mod) return Value(Int{0});
        return int_arithmetic(Op::sub, 0, a);
      }
      return Value(op == Op::floordiv ? floor_div(a, b) : a - floor_div(a, b) * b);
    default: {
      if (b < 0) {
        if (a == 0) fail("0.0 cannot be raised to a negative power");
        return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      out = 1;
      if (a == 0 || a == 1) return Value(b == 0 ? Int{1} : a);
      if (a == -1) return Value(b % 2 == 0 ? Int{1} : Int{-1});
      for (Int i = 0; i < b; ++i)
        if (__builtin_mul_overflow(out, a, &out)) fail_overflow();
      return Value(out);
    }
  }
}

Value float_arithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return Value(a + b);
    case Op::sub:
      return Value(a - b);
    case Op::mul:
      return Value(a * b);
    case Op::div:
      if (b == 0) fail("float division by zero");
      return Value(a / b);
    case Op::floordiv:
    case Op::mod: {
      if (b == 0) fail("float modulo by zero");
      double mod = std::fmod(a, b);
      double div = (a - mod) / b;
      if (mod != 0) {
        if ((b < 0) != (mod < 0)) {
          mod += b;
          div -= 1;
        }
      } else {
        mod = std::copysign(0.0, b);
      }
      if (op == Op::mod) return Value(mod);
      if (div == 0) return Value(std::copysign(0.0, a / b));
      const double floored = std::floor(div);
      return Value(div - floored > 0.5 ? floored + 1 : floored);
    }
    default:
      if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
      if (a < 0 && b != std::floor(b)) fail_unsupported("complex numbers");
      const double out = std::pow(a, b);
      if (std::isinf(out) && !std::isinf(a) && !std::isinf(b))
        fail("numerical result out of range");
      return Value(out);
  }
}

Value repeat(const Value& v, Int times) {
  const auto count = static_cast<std::size_t>(std::clamp<Int>(times, 0, 1 << 30));
  if (const Str* s = v.str()) {
    charge_bytes(s->empty() ? 0 : s->size() * count);
    Str out;
    if (!s->empty())
      for (std::size_t i = 0; i < count; ++i) out.append(*s);
    return make_str(std::move(out));
  }
  const Seq& q = *v.seq();
  if (count > 0 && q.items.size() > SIZE_MAX / count) charge(SIZE_MAX);
  charge(q.items.size() * count);
  Vector<Value> items;
  for (std::size_t i = 0; i < count && !q.items.empty(); ++i)
    items.insert(items.end(), q.items.begin(), q.items.end());
  return make_seq(q.kind, std::move(items));
}

bool repeatable(const Value& v) { return v.str() || v.is_list_or_tuple(); }
bool integral(const Value& v) { return v.as<bool>() || v.as<Int>(); }

}  // namespace

Value add(const Value& a, const Value& b) {
  if (a.str() && b.str()) {
    charge_copy(a.str()->size() + b.str()->size());
    Str out = a.str()->markup || !b.str()->markup ? *a.str() : escape_html(*a.str());
    const bool markup = a.str()->markup || b.str()->markup;
    const Str right = a.str()->markup && !b.str()->markup ? escape_html(*b.str()) : *b.str();
    charge_growth(out.size(), right.size());
    out.append(right);
    out.markup = markup;
    return make_str(std::move(out));
  }
  if (a.is_list_or_tuple() && b.is_list_or_tuple() && a.seq()->kind == b.seq()->kind) {
    charge(a.seq()->items.size() + b.seq()->items.size());
    Vector<Value> items = a.seq()->items;
    items.insert(items.end(), b.seq()->items.begin(), b.seq()->items.end());
    return make_seq(a.seq()->kind, std::move(items));
  }
  return arithmetic(Op::add, a, b);
}

Value arithmetic(Op op, const Value& a, const Value& b) {
  static constexpr std::string_view kNames[] = {"+", "-", "*", "/", "//", "%", "**"};
  if (integral(a) && integral(b)) return int_arithmetic(op, to_int(a), to_int(b));
  if (is_number(a) && is_number(b)) return float_arithmetic(op, to_double(a), to_double(b));
  if (op == Op::mul && repeatable(a) && integral(b)) return repeat(a, to_int(b));
  if (op == Op::mul && integral(a) && repeatable(b)) return repeat(b, to_int(a));
  if (op == Op::mod && a.str()) return percent_format(*a.str(), b);
  fail_operands(kNames[static_cast<std::size_t>(op) - static_cast<std::size_t>(Op::add)], a, b);
}

Value negate(const Value& v) {
  if (const auto* d = v.as<double>()) return Value(-*d);
  if (integral(v)) return int_arithmetic(Op::sub, 0, to_int(v));
  if (const auto* u = v.as<Undefined>()) fail_undefined(*u);
  fail("bad operand type for unary -: '" + std::string(type_name(v)) + "'");
}

bool contains(const Value& container, const Value& v) {
  if (container.is_undefined()) return false;
  if (const Str* s = container.str()) {
    if (!v.str())
      fail("'in <string>' requires a string as left operand, not " + std::string(type_name(v)));
    return find_text(s->text(), v.str()->text()) != std::string::npos;
  }
  if (const Seq* q = container.seq())
    return std::any_of(q->items.begin(), q->items.end(),
                       [&](const Value& i) { return equals(i, v); });
  if (const Dict* d = container.dict()) {
    if (v.dict() || (v.seq() && v.seq()->kind == SeqKind::list))
      fail("unhashable type: '" + std::string(type_name(v)) + "'");
    return d->find(v) != nullptr;
  }
  fail("argument of type '" + std::string(type_name(container)) + "' is not iterable");
}

bool compare(Compare how, const Value& a, const Value& b) {
  const bool floats = is_number(a) && is_number(b) && (a.as<double>() || b.as<double>());
  switch (how) {
    case Compare::eq:
      return equals(a, b);
    case Compare::ne:
      return !equals(a, b);
    case Compare::lt:
      return less(a, b);
    case Compare::gt:
      return less(b, a);
    case Compare::le:
      return floats ? to_double(a) <= to_double(b) : !less(b, a);
    case Compare::ge:
      return floats ? to_double(a) >= to_double(b) : !less(a, b);
    case Compare::in:
      return contains(b, a);
    case Compare::not_in:
      return !contains(b, a);
  }
  return false;
}

Value subscript(const Value& v, const Value& key, bool& found) {
  found = false;
  if (const Dict* d = v.dict()) {
    const Value* value = d->find(key);
    found = value != nullptr;
    return found ? *value : Value();
  }
  if (!integral(key)) return Value();
  Int index = to_int(key);
  if (const Seq* q = v.seq(); q && q->kind <= SeqKind::range) {
    const auto size = static_cast<Int>(q->items.size());
    if (index < 0) index += size;
    found = index >= 0 && index < size;
    return found ? q->items[static_cast<std::size_t>(index)] : Value();
  }
  if (const Str* s = v.str()) {
    charge_scan(s->size());
    if (index < 0) index += static_cast<Int>(count_code_points(s->text()));
    if (index < 0) return Value();
    std::size_t at = 0;
    for (; index > 0 && at < s->size(); --index) at += code_point_at(s->text(), at).size;
    found = at < s->size();
    return found ? make_str(s->slice(at, at + code_point_at(s->text(), at).size)) : Value();
  }
  return Value();
}

Value slice(const Value& v, const Value& start, const Value& stop, const Value& step) {
  if (const auto* u = v.as<Undefined>()) fail_undefined(*u);
  const Seq* q = v.seq();
  if (!v.str() && !(q && q->kind <= SeqKind::range))
    fail("'" + std::string(type_name(v)) + "' object cannot be sliced");
  Vector<std::size_t> offsets;
  if (v.str()) {
    offsets = code_point_offsets(v.str()->text());
  }
  const auto size = static_cast<Int>(q ? q->items.size() : offsets.size() - 1);
  const Int by = step.is_none() ? 1 : to_int(step);
  if (by == 0) fail("slice step cannot be zero");
  const Int lowest = by < 0 ? -1 : 0, highest = by < 0 ? size - 1 : size;
  const auto bound = [&](const Value& b, Int fallback) {
    if (b.is_none()) return fallback;
    Int i = to_int(b);
    if (i < 0) i += size;
    return std::clamp(i, lowest, std::max(lowest, highest));
  };
  const Int from = bound(start, by < 0 ? highest : lowest),
            to = bound(stop, by < 0 ? lowest : highest);
  if (v.str() && by == 1)
    return make_str(v.str()->slice(offsets[static_cast<std::size_t>(from)],
                                   offsets[static_cast<std::size_t>(std::max(from, to))]));
  Vector<Value> items;
  Str text;
  for (Int i = from; by > 0 ? i < to : i > to; i += by) {
    const auto at = static_cast<std::size_t>(i);
    if (q)
      items.push_back(q->items[at]);
    else
      text.append(*v.str(), offsets[at], offsets[at + 1]);
    if (by > size || by < -size) break;
  }
  if (v.str()) return make_str(std::move(text));
  if (q->kind != SeqKind::range) return make_seq(q->kind, std::move(items));
  auto range = make_counted<Seq>(*q);
  range->items = std::move(items);
  range->first = q->first + from * q->step;
  range->stop = q->first + to * q->step;
  if (__builtin_mul_overflow(q->step, by, &range->step)) fail_overflow();
  return Value(SeqRef(std::move(range)));
}

}  // namespace quire::jinja
