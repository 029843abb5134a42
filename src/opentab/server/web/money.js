// Money: exact texts from the server, shown in the browser's own way. No amount is ever a float here.

const MICROS = 1_000_000n;

let currency = "EUR";
let rounded, exact, signed;

/** The home's currency, once it is known. */
export function useCurrency(code) {
  currency = code;
  rounded = exact = signed = undefined;
}

/** Millionths, from a decimal text. */
export function micros(text) {
  const [, sign, whole, fraction = ""] = /^(-?)(\d+)(?:\.(\d{1,6}))?$/.exec(text);
  const value = BigInt(whole) * MICROS + BigInt(fraction.padEnd(6, "0"));
  return sign ? -value : value;
}

/** A decimal text, from millionths. */
export function decimal(value) {
  const size = value < 0n ? -value : value;
  return `${value < 0n ? "-" : ""}${size / MICROS}.${String(size % MICROS).padStart(6, "0")}`;
}

/** Several texts together, as a text. */
export function sum(texts) {
  return decimal(texts.reduce((total, text) => total + micros(text), 0n));
}

/** One less another, as a text. */
export function less(one, other) {
  return decimal(micros(one) - micros(other));
}

/** In the currency's own digits, as an invoice would round it. */
export function money(text) {
  rounded ??= format({ roundingMode: "halfEven" });
  return rounded.format(text);
}

/** The same with its sign, for a difference. */
export function difference(text) {
  signed ??= format({ roundingMode: "halfEven", signDisplay: "exceptZero" });
  return signed.format(text);
}

/** All six decimals, in parts: what an invoice shows, and the small rest behind it. */
export function moneyParts(text) {
  exact ??= format({ minimumFractionDigits: 6, maximumFractionDigits: 6 });
  rounded ??= format({ roundingMode: "halfEven" });
  const digits = rounded.resolvedOptions().maximumFractionDigits;
  const parts = [];
  for (const { type, value } of exact.formatToParts(text)) {
    if (type !== "fraction") parts.push({ text: value, small: type === "currency" ? "currency" : null });
    else {
      if (digits) parts.push({ text: value.slice(0, digits), small: null });
      parts.push({ text: value.slice(digits), small: "rest" });
    }
  }
  return parts;
}

/** For axes and bars only, where a pixel is coarser than any rounding. */
export function height(text) {
  return Number(micros(text)) / 1e6;
}

/** A round amount for an axis. */
export function axisMoney(value) {
  return format({ notation: "compact", maximumFractionDigits: value !== 0 && Math.abs(value) < 10 ? 2 : 1, minimumFractionDigits: 0 }).format(value);
}

function format(options) {
  return new Intl.NumberFormat(undefined, { style: "currency", currency, ...options });
}
