"use strict";
// Definitions on hover, focus and tap. Without this script the title attributes still show them.
function startTips() {
  const tip = document.getElementById("tip");
  const adopt = (node) => {
    const text = node.getAttribute("title");
    if (text) {
      node.dataset.tip = text;
      node.setAttribute("aria-description", text);
      node.removeAttribute("title");
    }
    return node.dataset.tip;
  };
  const show = (event) => {
    const node = event.target.closest ? event.target.closest("[title], [data-tip]") : null;
    const text = node && adopt(node);
    if (!text) return hide();
    tip.textContent = text;
    tip.hidden = false;
    const box = node.getBoundingClientRect();
    const left = Math.min(Math.max(12, box.left), innerWidth - tip.offsetWidth - 12);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 50 ? above : box.bottom + 8}px`;
  };
  const hide = () => { tip.hidden = true; };
  for (const type of ["pointerover", "focusin", "click"]) document.addEventListener(type, show);
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true });
}
